"""What a task may ask for that opens its walls: a right of its own, besides that to submit jobs."""

from storage.records.driver import canonical
from storage.records.task import Task

_CLOSED: dict[str, tuple[object, ...]] = {
    "seccomp": (None, "", "default"),
    "user_namespaces": (None, False, "false"),
}


def openings(task: Task) -> list[str]:
    """Return the settings of a task that open the filter of system calls, or may do so.

    A reference is resolved when the task starts, so it counts as well.
    """
    if canonical(task.driver) != "exec":
        return []
    block = task.config or {}
    return [name for name, closed in _CLOSED.items() if block.get(name) not in closed]
