"""Text about a task error: the cause in one sentence, and the end of the task's standard error."""

import re
from collections.abc import Mapping, Sequence

from storage.records.allocation import TIME_LIMIT_EVENT, TaskEvent
from storage.records.failure import TaskError

# Events that are always errors. `Terminated` is an error only with a nonzero exit code.
ERRORS = frozenset(
    {
        "Driver Failure",
        "Setup Failure",
        "Failed Validation",
        "Failed Artifact Download",
        "Task hook failed",
        "Secrets Error",
        "Disk Resources Exceeded",
        TIME_LIMIT_EVENT,
        "Port In Use",
        "Output Failure",
    }
)
WAITS = frozenset({"Template", "Cluster"})  # errors only while the attempt has not started
STARTED = "Started"
RESTARTING = "Restarting"
_UNHEALTHY = "Alloc Unhealthy"
_TERMINATED = "Terminated"
_SHOWN = 5  # last lines of the standard error
# The events of the API have the texts of Nomad's driver plugins, because clients match them. These
# parts of the texts are about remote calls between Nomad's processes, which Steward does not make.
_CALLS = re.compile(
    r"(?:failed to launch command with executor: )?rpc error: code = \w+ desc = |user: (?=unknown user )"
)


def is_on_request(restarting: TaskEvent) -> bool:
    """Return whether a restart has no failure as its reason: a user or a template requested it."""
    return not restarting.restart_reason


def sentence(error: TaskError | None) -> str:
    """Format an error as one sentence without a full stop; empty if there is no error."""
    if error is None:
        return ""
    again = f" (restarted {error.restarts} times)" if error.restarts > 1 else ""
    if error.kind != _TERMINATED:
        return f'task "{error.task}": {plain_reason(error.message)}{again}'
    if error.oom_killed:
        how = "was killed because it used more memory than its limit"
    elif error.signal:
        how = f"was ended by {error.signal}"
    else:
        how = f"exited with code {error.exit_code}"
    reason = f": {plain_reason(error.message)}" if error.message else ""
    return f'task "{error.task}" {how}{reason}{again}'


def why_unhealthy(events_by_task: Mapping[str, Sequence[TaskEvent]]) -> str:
    """Return why an unhealthy allocation is unhealthy, with the failing checks; empty if unknown.

    The events of each task are in the order of their times.
    """
    for name, events in sorted(events_by_task.items()):
        for event in reversed(events):
            if event.type == _UNHEALTHY:
                checks = event.details.get("checks", "")
                text = ": ".join(filter(None, (event.display_message, checks)))
                return f'task "{name}": {text}'
    return ""


def plain_reason(text: str) -> str:
    """Return the text of an event for users, without the parts about remote calls.

    >>> plain_reason("rpc error: code = Unknown desc = binary could not be found")
    'binary could not be found'
    """
    return _CALLS.sub("", text)


def last_lines(error: TaskError, most: int = _SHOWN) -> list[str]:
    """Return the last lines that an attempt wrote to its standard error."""
    return error.stderr.splitlines()[-most:]
