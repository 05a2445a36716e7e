"""Task events with Nomad's exact texts (source: Nomad's recorded responses `task-events`). No I/O.

Each detail is a separate field and also part of the text in `details`, because some clients read
the fields and others read the text. `now` is in nanoseconds since the epoch; durations are in
nanoseconds.
"""

import msgspec

from daemon.runner.core.driver import ExitResult
from daemon.runner.core.lifecycle import GroupShutdown, ShutdownCause
from daemon.runner.core.restart_policy import WITHIN_POLICY
from storage.records import durations
from storage.records.allocation import TIME_LIMIT_EVENT, StoredTaskEvent, TaskEvent

_MEGABYTE = 1024 * 1024

RESTARTING = "Restarting"
BY_USER = "User requested task to restart"


def received(now: int) -> TaskEvent:
    """Return `Received`: the runner has the task."""
    return TaskEvent(type="Received", time=now, display_message="Task received by client")


def task_setup(now: int) -> TaskEvent:
    """Return `Task Setup`: the task directory is being created."""
    return _with_message("Task Setup", now, "Building Task Directory")


def started(now: int) -> TaskEvent:
    """Return `Started`: the task is running."""
    return TaskEvent(type="Started", time=now, display_message="Task started by client")


def setup_failure(now: int, error: str) -> TaskEvent:
    """Return `Setup Failure`: an input of the task could not be prepared."""
    return _event_with_reason("Setup Failure", now, "setup_error", error)


def driver_failure(now: int, error: str) -> TaskEvent:
    """Return `Driver Failure`: the driver could not start the task."""
    return _event_with_reason("Driver Failure", now, "driver_error", error)


def failed_validation(now: int, error: str) -> TaskEvent:
    """Return `Failed Validation`: the driver configuration of the task is invalid."""
    return _event_with_reason("Failed Validation", now, "validation_error", error)


def terminated(
    now: int, end: ExitResult, stderr: str = "", log_ends: dict[str, int] | None = None
) -> StoredTaskEvent:
    """Return `Terminated`: the task has ended.

    `stderr` is the end of the task's standard error. `log_ends` are the lengths of the task's logs
    in bytes when the task ended.
    """
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
    return StoredTaskEvent(
        type="Terminated",
        time=now,
        display_message=", ".join(parts),
        message=end.message,
        exit_code=end.code,
        signal=end.signal,
        details=details,
        steward_stderr=stderr,
        steward_log_ends=log_ends or {},
    )


def restarting(now: int, reason: str, delay: int) -> TaskEvent:
    """Return `Restarting`: the task will be restarted after a delay."""
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
    """Return `Not Restarting`: the task has failed permanently."""
    return TaskEvent(
        type="Not Restarting",
        time=now,
        display_message=reason,
        restart_reason=reason,
        fails_task=True,
        details={"restart_reason": reason, "fails_task": "true"},
    )


def restart_signaled(now: int, reason: str) -> TaskEvent:
    """Return `Restart Signaled`: a restart was requested."""
    return _event_with_reason("Restart Signaled", now, "restart_reason", reason)


def signaling(now: int, name: str) -> TaskEvent:
    """Return `Signaling`: the task receives a signal; `name` is as the caller wrote it."""
    return TaskEvent(
        type="Signaling",
        time=now,
        display_message="Task being sent a signal",
        details={"signal": name},
    )


def killing(now: int, timeout: int) -> TaskEvent:
    """Return `Killing`: the task receives its kill signal and is killed after a timeout."""
    span = durations.text(timeout)
    return TaskEvent(
        type="Killing",
        time=now,
        display_message=f"Sent interrupt. Waiting {span} before force killing",
        kill_timeout=timeout,
        details={"kill_timeout": span},
    )


def killed(now: int, error: str = "") -> TaskEvent:
    """Return `Killed`: the task was stopped; `error` lists problems while stopping it."""
    return TaskEvent(
        type="Killed",
        time=now,
        display_message=error or "Task successfully killed",
        kill_error=error,
        details={"kill_error": error} if error else {},
    )


def waiting_for_shutdown(now: int, delay: int) -> TaskEvent:
    """Return the event for the start of a shutdown delay."""
    span = durations.text(delay)
    return TaskEvent(
        type="Waiting for shutdown delay",
        time=now,
        display_message=f"Waiting for shutdown_delay of {span} before killing the task.",
    )


def skipping_shutdown(now: int, delay: int) -> TaskEvent:
    """Return the event for a skipped shutdown delay."""
    span = durations.text(delay)
    return TaskEvent(
        type="Skipping shutdown delay",
        time=now,
        display_message=f"Skipping shutdown_delay of {span} before killing the task.",
    )


def stopped_with_group(now: int, reason: GroupShutdown) -> TaskEvent:
    """Return the event for a task that stops because another task ended."""
    match reason.why:
        case ShutdownCause.SIBLING_FAILED:
            return sibling_failed(now, reason.task)
        case ShutdownCause.LEADER_DEAD:
            return leader_dead(now)
        case ShutdownCause.MAINS_DEAD:
            return main_tasks_dead(now)


def sibling_failed(now: int, sibling: str) -> TaskEvent:
    """Return the event for a task that stops because a task of its group failed."""
    return TaskEvent(
        type="Sibling Task Failed",
        time=now,
        display_message=f'Task\'s sibling "{sibling}" failed',
        failed_sibling=sibling,
        details={"failed_sibling": sibling},
    )


def leader_dead(now: int) -> TaskEvent:
    """Return the event for a task that stops because the leader of its group ended."""
    return TaskEvent(type="Leader Task Dead", time=now, display_message="Leader Task in Group dead")


def main_tasks_dead(now: int) -> TaskEvent:
    """Return the event for a sidecar that stops because all main tasks are dead."""
    return TaskEvent(
        type="Main Tasks Dead", time=now, display_message="Main tasks in the group died"
    )


def cluster(now: int, text: str) -> TaskEvent:
    """Return an event that carries a cluster's message about a submitted task."""
    return _with_message("Cluster", now, text)


def port_in_use(now: int, reason: str) -> TaskEvent:
    """Return the event for a port of the task that is already in use."""
    return _with_message("Port In Use", now, reason)


def max_run_exceeded(now: int, longest: int) -> TaskEvent:
    """Return the event for an allocation that exceeded its `max_run_duration`."""
    span = durations.text(longest)
    return TaskEvent(
        type=TIME_LIMIT_EVENT,
        time=now,
        display_message=f"The allocation has run for {span}, its maximum run time",
        details={"max_run_duration": span},
    )


def disk_exceeded(now: int, used: int, limit: int) -> TaskEvent:
    """Return the event for an allocation over its disk limit; both sizes in bytes."""
    limit_mb, used_mb = limit // _MEGABYTE, -(-used // _MEGABYTE)
    return TaskEvent(
        type="Disk Resources Exceeded",
        time=now,
        display_message=f"The allocation uses {used_mb} MB of disk, but its group requested {limit_mb} MB",
        disk_limit=limit,
        details={"disk_limit": str(limit), "disk_size": str(used)},
    )


def unhealthy(now: int, reason: str, checks: str = "") -> TaskEvent:
    """Return the event for a task that makes its allocation unhealthy in a deployment.

    `checks` lists the failing checks. They are in a separate field, because clients expect the
    exact text of the event.
    """
    event = _with_message("Alloc Unhealthy", now, reason)
    details = {**event.details, **({"checks": checks} if checks else {})}
    return msgspec.structs.replace(event, details=details)


def downloading(now: int) -> TaskEvent:
    """Return `Downloading Artifacts`."""
    return TaskEvent(
        type="Downloading Artifacts", time=now, display_message="Client is downloading artifacts"
    )


def download_progress(now: int, source: str, size: int) -> TaskEvent:
    """Return a progress event: `size` bytes of an artifact are downloaded, and more follow."""
    return TaskEvent(
        type="Downloading Artifacts",
        time=now,
        display_message=f"Client is downloading artifacts: {size // 1_000_000} MB so far of {source}",
        details={"artifact": source, "bytes": str(size)},
    )


def download_failed(now: int, reason: str) -> TaskEvent:
    """Return the event for an artifact that could not be downloaded."""
    return _event_with_reason("Failed Artifact Download", now, "download_error", reason)


def template(now: int, message: str) -> TaskEvent:
    """Return `Template`: an event about the task's templates or their change actions."""
    return _with_message("Template", now, message)


def secrets_failure(now: int, reason: str) -> TaskEvent:
    """Return the event for a task that cannot get a Vault token."""
    event = _event_with_reason("Secrets Error", now, "secrets_error", reason)
    return msgspec.structs.replace(event, vault_error=reason)


def output_failure(now: int, reason: str) -> TaskEvent:
    """Return the event for a successful task whose outputs are faulty or incomplete."""
    return TaskEvent(
        type="Output Failure",
        time=now,
        display_message=reason,
        message=reason,
        details={"message": reason},
    )


def files_kept(now: int, number: int, size: int) -> TaskEvent:
    """Return `Files Kept`: files of the ended task are in the store. `size` is in bytes."""
    text = f"{number} files with {size} bytes" if number != 1 else f"1 file with {size} bytes"
    return _with_message("Files Kept", now, f"Steward keeps {text}")


def file_not_kept(now: int, reason: str) -> TaskEvent:
    """Return `File Not Kept`: a file that `steward_keep` names is not in the store."""
    return _with_message("File Not Kept", now, reason)


def hook_failed(now: int, reason: str) -> TaskEvent:
    """Return the event for a failed task setup hook."""
    return _with_message("Task hook failed", now, reason)


def _with_message(kind: str, now: int, message: str) -> TaskEvent:
    return _event_with_reason(kind, now, "message", message)


def _event_with_reason(kind: str, now: int, field: str, text: str) -> TaskEvent:
    """Return an event with `text` both as its display message and in the field `field`."""
    event = TaskEvent(type=kind, time=now, display_message=text, details={field: text})
    return msgspec.structs.replace(event, **{field: text})
