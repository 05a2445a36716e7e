"""What happened to a task, in the exact words of the peer (golden: task-events). Pure.

A detail stands in a field of its own and, as text, in `details`; clients read either. `now` is
nanoseconds since the epoch, spans are nanoseconds.
"""

import msgspec

from daemon.runner.drivers.driver import Exit
from daemon.runner.lifecycle import Departure, Why
from daemon.runner.restarts import WITHIN_POLICY
from storage.records import durations
from storage.records.allocation import TaskEvent

_MEGABYTE = 1024 * 1024

RESTARTING = "Restarting"
BY_USER = "User requested task to restart"


def received(now: int) -> TaskEvent:
    """Return: the runner knows of the task."""
    return TaskEvent(type="Received", time=now, display_message="Task received by client")


def task_setup(now: int) -> TaskEvent:
    """Return: the task's directory is being made."""
    return _with_message("Task Setup", now, "Building Task Directory")


def started(now: int) -> TaskEvent:
    """Return: the task runs."""
    return TaskEvent(type="Started", time=now, display_message="Task started by client")


def setup_failure(now: int, error: str) -> TaskEvent:
    """Return: what the task needs could not be made ready."""
    return _because("Setup Failure", now, "setup_error", error)


def driver_failure(now: int, error: str) -> TaskEvent:
    """Return: the driver could not start the task."""
    return _because("Driver Failure", now, "driver_error", error)


def failed_validation(now: int, error: str) -> TaskEvent:
    """Return: the block that the task gives its driver is wrong."""
    return _because("Failed Validation", now, "validation_error", error)


def terminated(now: int, end: Exit) -> TaskEvent:
    """Return: the task has ended."""
    parts = [f"Exit Code: {end.code}"]
    if end.signal:
        parts.append(f"Signal: {end.signal}")
    details = {
        "exit_code": str(end.code),
        "signal": str(end.signal),
        "oom_killed": "true" if end.oom_killed else "false",
    }
    if end.message:
        parts.append(f'Exit Message: "{end.message}"')
        details["exit_message"] = end.message
    return TaskEvent(
        type="Terminated",
        time=now,
        display_message=", ".join(parts),
        message=end.message,
        exit_code=end.code,
        signal=end.signal,
        details=details,
    )


def restarting(now: int, reason: str, delay: int) -> TaskEvent:
    """Return: the task will be started again after a delay."""
    text = f"Task restarting in {durations.text(delay)}"
    return TaskEvent(
        type=RESTARTING,
        time=now,
        display_message=text if reason in {"", WITHIN_POLICY} else f"{reason} - {text}",
        restart_reason=reason,
        start_delay=delay,
        details={"restart_reason": reason, "start_delay": str(delay)},
    )


def not_restarting(now: int, reason: str) -> TaskEvent:
    """Return: the task has failed for good."""
    return TaskEvent(
        type="Not Restarting",
        time=now,
        display_message=reason,
        restart_reason=reason,
        fails_task=True,
        details={"restart_reason": reason, "fails_task": "true"},
    )


def restart_signaled(now: int, reason: str) -> TaskEvent:
    """Return: somebody wants the task to be started again."""
    return _because("Restart Signaled", now, "restart_reason", reason)


def signaling(now: int, name: str) -> TaskEvent:
    """Return: the task gets a signal, by the name that was given."""
    return TaskEvent(
        type="Signaling",
        time=now,
        display_message="Task being sent a signal",
        details={"signal": name},
    )


def killing(now: int, timeout: int) -> TaskEvent:
    """Return: the task is asked to end, and made to after a while."""
    span = durations.text(timeout)
    return TaskEvent(
        type="Killing",
        time=now,
        display_message=f"Sent interrupt. Waiting {span} before force killing",
        kill_timeout=timeout,
        details={"kill_timeout": span},
    )


def killed(now: int, error: str = "") -> TaskEvent:
    """Return: the task was ended; `error` says what of it could not be."""
    return TaskEvent(
        type="Killed",
        time=now,
        display_message=error or "Task successfully killed",
        kill_error=error,
        details={"kill_error": error} if error else {},
    )


def waiting_for_shutdown(now: int, delay: int) -> TaskEvent:
    """Return: the task goes on for its shutdown delay."""
    span = durations.text(delay)
    return TaskEvent(
        type="Waiting for shutdown delay",
        time=now,
        display_message=f"Waiting for shutdown_delay of {span} before killing the task.",
    )


def skipping_shutdown(now: int, delay: int) -> TaskEvent:
    """Return: the task does not get its shutdown delay."""
    span = durations.text(delay)
    return TaskEvent(
        type="Skipping shutdown delay",
        time=now,
        display_message=f"Skipping shutdown_delay of {span} before killing the task.",
    )


def departing(now: int, reason: Departure) -> TaskEvent:
    """Return: the task goes because of what became of another one."""
    match reason.why:
        case Why.SIBLING_FAILED:
            return sibling_failed(now, reason.task)
        case Why.LEADER_DEAD:
            return leader_dead(now)
        case Why.MAINS_DEAD:
            return mains_dead(now)


def sibling_failed(now: int, sibling: str) -> TaskEvent:
    """Return: the task goes because another one of its group has failed."""
    return TaskEvent(
        type="Sibling Task Failed",
        time=now,
        display_message=f'Task\'s sibling "{sibling}" failed',
        failed_sibling=sibling,
        details={"failed_sibling": sibling},
    )


def leader_dead(now: int) -> TaskEvent:
    """Return: the task goes because the leader of its group has ended."""
    return TaskEvent(type="Leader Task Dead", time=now, display_message="Leader Task in Group dead")


def mains_dead(now: int) -> TaskEvent:
    """Return: the task goes because the tasks it accompanied have ended."""
    return TaskEvent(
        type="Main Tasks Dead", time=now, display_message="Main tasks in the group died"
    )


def cluster(now: int, text: str) -> TaskEvent:
    """Return: what the cluster says of the task that was submitted to it."""
    return _with_message("Cluster", now, text)


def port_in_use(now: int, reason: str) -> TaskEvent:
    """Return: somebody else listens on a port that the task was given."""
    return _with_message("Port In Use", now, reason)


def overtime(now: int, longest: int) -> TaskEvent:
    """Return: the task goes because its allocation has run for as long as it may."""
    span = durations.text(longest)
    return TaskEvent(
        type="Max Run Duration Exceeded",
        time=now,
        display_message=f"The allocation has run for {span}, which is as long as it may",
        details={"max_run_duration": span},
    )


def disk_exceeded(now: int, used: int, limit: int) -> TaskEvent:
    """Return: the task's allocation takes more disk than its group asked for; both in bytes."""
    limit_mb, used_mb = limit // _MEGABYTE, -(-used // _MEGABYTE)
    return TaskEvent(
        type="Disk Resources Exceeded",
        time=now,
        display_message=f"The allocation takes {used_mb} MB of disk, and its group asked for {limit_mb} MB",
        disk_limit=limit,
        details={"disk_limit": str(limit), "disk_size": str(used)},
    )


def unhealthy(now: int, reason: str) -> TaskEvent:
    """Return: a deployment counts the allocation as unhealthy, because of this task."""
    return _with_message("Alloc Unhealthy", now, reason)


def downloading(now: int) -> TaskEvent:
    """Return: what the task brings along is being fetched."""
    return TaskEvent(
        type="Downloading Artifacts", time=now, display_message="Client is downloading artifacts"
    )


def arrived(now: int, source: str, size: int) -> TaskEvent:
    """Return: so many bytes of something that the task brings along are there, and more is to come."""
    return TaskEvent(
        type="Downloading Artifacts",
        time=now,
        display_message=f"Client is downloading artifacts: {size // 1_000_000} MB so far of {source}",
        details={"artifact": source, "bytes": str(size)},
    )


def download_failed(now: int, reason: str) -> TaskEvent:
    """Return: something that the task brings along could not be had."""
    return _because("Failed Artifact Download", now, "download_error", reason)


def template(now: int, message: str) -> TaskEvent:
    """Return: something about the templates of the task, or about what follows their changes."""
    return _with_message("Template", now, message)


def secrets_failure(now: int, reason: str) -> TaskEvent:
    """Return: the task cannot have a token of the secrets side."""
    event = _because("Secrets Error", now, "secrets_error", reason)
    return msgspec.structs.replace(event, vault_error=reason)


def hook_failed(now: int, reason: str) -> TaskEvent:
    """Return: something beside the task could not be done for it."""
    return _with_message("Task hook failed", now, reason)


def _with_message(kind: str, now: int, message: str) -> TaskEvent:
    return _because(kind, now, "message", message)


def _because(kind: str, now: int, field: str, text: str) -> TaskEvent:
    """Return an event with one text, which stands in the field that is named."""
    event = TaskEvent(type=kind, time=now, display_message=text, details={field: text})
    return msgspec.structs.replace(event, **{field: text})
