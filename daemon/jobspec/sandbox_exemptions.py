"""Task settings that weaken the sandbox. They need a capability in addition to `submit-job`."""

from storage.records.driver import canonical
from storage.records.task import Task

_CLOSED: dict[str, tuple[object, ...]] = {
    "seccomp": (None, "", "default"),
    "user_namespaces": (None, False, "false"),
}


def weakened_settings(task: Task) -> list[str]:
    """Return a task's settings that weaken the sandbox, or may weaken it.

    A setting that contains a reference may weaken the sandbox, because the reference is resolved
    only when the task starts.
    """
    if canonical(task.driver) != "exec":
        return []
    block = task.config or {}
    return [name for name, closed in _CLOSED.items() if block.get(name) not in closed]
