"""Identify the cgroups (version 2) of tasks, and kill the processes in them.

The daemon creates the cgroups below a delegated parent, but it cannot signal their processes.
Threaded cgroups have no `cgroup.kill`, so the processes are killed one by one.
"""

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress

_LISTS = ("cgroup.procs", "cgroup.threads", "tasks")
SHARED = "/shared"  # below a parent cgroup; has the cgroups of tasks without reserved cores
_TOGETHER = f"{SHARED}/tasks"  # in version 1, these tasks share one cgroup


def belongs(group: str, above: Collection[str], allocation: str, task: str) -> bool:
    """Return whether a cgroup belongs to a task, and is below one of the parents `above`."""
    parent, _, name = group.rpartition("/")
    return name == f"{allocation}.{task}" and parent.removesuffix(SHARED) in above


def is_list(
    file: str, above: Collection[str], allocation: str, task: str, own_groups: Collection[str]
) -> bool:
    """Return whether a file is the process list of a cgroup that a task may enter.

    A task may enter its own cgroup, a shared cgroup, and the cgroups in `own_groups`. The shell
    reads one path per line. The path must therefore have no newline, which a task's name may have.
    """
    group, _, name = file.rpartition("/")
    is_own = belongs(group, above, allocation, task) or group in own_groups
    return name in _LISTS and "\n" not in file and (is_own or file.removesuffix(_TOGETHER) in above)


def is_made(above: str, allocation: str, task: str) -> bool:
    """Return whether the parent `above` contains the cgroup of a task, or the shared cgroup."""
    paths = (*of_task([above], allocation, task), f"{above}{_TOGETHER}")
    return any(map(os.path.exists, paths))


def of_task(above: Collection[str], allocation: str, task: str) -> set[str]:
    """Return the paths of all cgroups that a task can belong to, below the parents `above`."""
    return {f"{root}{deeper}/{allocation}.{task}" for root in above for deeper in ("", SHARED)}


def claimed(text: bytes, allocation: str, task: str) -> set[str]:
    """Return a set that contains the cgroup from the text of a claim.

    The set is empty if the text contains no cgroup of the task.
    """
    first = text.partition(b"\n")[0].removeprefix(b"group ").decode(errors="replace")
    is_it = first.startswith("/") and first.endswith(f"/{allocation}.{task}")
    return {first} if is_it else set()


def kill(group: str) -> None:
    """Kill all processes in a cgroup and its children.

    Without `cgroup.kill`, freeze the cgroup first: a frozen process creates no children.
    """
    if _write(f"{group}/cgroup.kill"):
        return
    _write(f"{group}/cgroup.freeze")
    for directory, thread in threads(group):
        _kill(thread, directory)


def threads(group: str) -> Iterator[tuple[str, str]]:
    """Yield the threads in a cgroup and its children, each with its cgroup."""
    for folder, _, _ in os.walk(group):
        with suppress(OSError):  # the cgroup was removed
            yield from ((folder, tid) for tid in _read(f"{folder}/cgroup.threads").split())


def _kill(thread: str, group: str) -> None:
    with suppress(OSError):  # the process has ended
        status = _read(f"/proc/{thread}/status")
        (process,) = (line.split()[1] for line in status.split("\n") if line.startswith("Tgid:"))
        descriptor = os.pidfd_open(int(process))
        try:
            lines = _read(f"/proc/{process}/task/{thread}/cgroup").split("\n")
            # The thread is still in the cgroup after the pidfd was opened, so its ID was not
            # reused.
            if any(line.startswith("0::") and group.endswith(line[3:]) for line in lines):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _read(file: str) -> str:
    # The name of a process may have any bytes except a newline, which the kernel escapes.
    with open(file, encoding="utf-8", errors="replace", newline="\n") as opened:
        return opened.read()


def _write(file: str) -> bool:
    """Write 1 to an existing file; return whether the kernel accepted it."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return bool(os.write(descriptor, b"1"))
    except OSError:
        return False
    finally:
        os.close(descriptor)
