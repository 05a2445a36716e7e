"""Find the processes of attempts without cgroups, by scanning all processes.

A process belongs to an attempt in one of these cases. Its initial environment names the allocation
and the task. It is in the session or process group of the task's main process. Its parent belongs
to the attempt. The environment only counts if it has the directory of the allocation, or if that
directory is mounted at `/alloc`. Equal names of another installation are therefore ignored.

If the main process has already exited, a stop first scans only orphans, which is a tenth of the
work. Other processes of the attempt descend from an orphan. So the stop scans all processes only if
it finds an orphan of the attempt.
"""

import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from daemon.launcher.claims_and_logs import SHARED, below, read_claim, shim_of
from daemon.launcher.messages import MOST_PIDS, ScanTarget
from daemon.launcher.shims import children, fields

_STATE, _PARENT, _PROCESS_GROUP, _SESSION, _STARTED = (
    0,
    1,
    2,
    3,
    19,
)  # fields of `stat` after the name
_ROUNDS = 8  # of scans, until the remaining processes create no new ones
_WHERE, _MOUNTED_AT = 3, 4  # fields of `mountinfo`
_CLAIMED = re.compile(rb"^(shim|main|exit) (\d{1,9})\n", re.MULTILINE)


class Process(msgspec.Struct, frozen=True):
    """A process in a scan."""

    pid: int
    parent: int
    group: int
    session: int
    allocation: str = ""
    task: str = ""
    started: int = 0  # ticks after boot


class ProcessCriteria(msgspec.Struct, frozen=True):
    """The criteria for the processes of an attempt; an empty task selects all tasks."""

    allocation: str
    task: str = ""
    session: int = 0
    shim: int = 0
    has_ended: bool = False  # whether its main process has ended


def sweep(directory: str, marks: Sequence[ScanTarget]) -> list[list[int]]:
    """Scan for the processes of marks and act on them; return the results of the last scan."""
    meant = [_meant(directory, one) for one in marks]

    def find(look: Callable[[str], Sequence[Process]] = every) -> list[list[Process]]:
        processes = look(directory)
        return [belonging(processes, one) for one in meant]

    are_orphans = all(
        one.action == "end" and it.has_ended for one, it in zip(marks, meant, strict=True)
    )
    found = find(orphans if are_orphans else every)
    if are_orphans and any(found):
        found = find()
    held: set[Process] = set()
    for _ in range(_ROUNDS):
        fresh = _with(found, marks, "hold", "end") - held
        if not fresh:
            break
        send(fresh, signal.SIGSTOP)
        held |= fresh
        found = find()
    send(_with(found, marks, "end") & held, signal.SIGKILL)
    send(_with(found, marks, "let_go"), signal.SIGCONT)
    most = MOST_PIDS // max(1, len(marks))
    return [[one.pid for one in some[:most]] for some in found]


def _with(
    found: Sequence[Sequence[Process]], marks: Sequence[ScanTarget], *actions: str
) -> set[Process]:
    return {
        one
        for some, mark in zip(found, marks, strict=True)
        if mark.action in actions
        for one in some
    }


def _meant(directory: str, mark: ScanTarget) -> ProcessCriteria:
    """Return the criteria of a mark, completed from its claim."""
    given = ProcessCriteria(mark.allocation, mark.task or "")
    if mark.task is None or mark.attempt is None:
        return given
    try:
        with below(directory, mark.allocation) as folder:
            is_held = shim_of(folder, mark.task, mark.attempt) is not None
            text, _ = read_claim(folder, mark.task, mark.attempt)
    except OSError:
        return given
    said = {key: int(value) for key, value in _CLAIMED.findall(text)}
    session = said.get(b"main", 0)
    if not is_held and os.path.exists(f"/proc/{session}"):
        session = 0  # the process ID was reused, so the task's process has ended
    return ProcessCriteria(
        given.allocation, given.task, session, said.get(b"shim", 0), b"exit" in said
    )


def belonging(processes: Iterable[Process], meant: ProcessCriteria) -> list[Process]:
    """Return the selected processes, including children of selected ones."""
    below_of: dict[int, list[Process]] = {}
    found = []
    for one in processes:
        below_of.setdefault(one.parent, []).append(one)
        if one.pid != meant.shim and _is_meant(one, meant):
            found.append(one)
    known = {one.pid for one in found}
    for one in found:  # the list grows during the loop
        fresh = [child for child in below_of.get(one.pid, ()) if child.pid not in known]
        known.update(child.pid for child in fresh)
        found += fresh
    return found


def _is_meant(process: Process, meant: ProcessCriteria) -> bool:
    if meant.session and meant.session in (process.session, process.group):
        return True
    return process.allocation == meant.allocation and meant.task in {"", process.task}


def every(directory: str) -> list[Process]:
    """Return all live processes, except the launcher and the daemon."""
    ours = (os.getpid(), os.getppid())
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [found for pid in pids if pid not in ours and (found := _process(pid, directory))]


def orphans(directory: str) -> list[Process]:
    """Return the processes whose parent has ended, and other children of their new parents."""
    adopters, pid = {1}, os.getpid()
    while pid > 1 and (said := fields(pid)):
        pid = int(said[_PARENT])
        adopters.add(pid)
    pids = {child for adopter in adopters for child in children(adopter)} - adopters
    return [found for pid in pids - {os.getpid()} if (found := _process(pid, directory))]


def _process(pid: int, directory: str) -> Process | None:
    said = fields(pid)
    if not said or said[_STATE] in (b"Z", b"X"):
        return None
    allocation, task = _owner(pid, directory)
    return Process(
        pid=pid,
        parent=int(said[_PARENT]),
        group=int(said[_PROCESS_GROUP]),
        session=int(said[_SESSION]),
        allocation=allocation,
        task=task,
        started=int(said[_STARTED]),
    )


def _owner(pid: int, directory: str) -> tuple[str, str]:
    """Return the allocation and task in a process's environment; empty for any other process."""
    try:
        environment = _variables(_read(f"/proc/{pid}/environ"))
        allocation = environment.get(b"NOMAD_ALLOC_ID", b"")
        if not allocation:
            return "", ""
        shared, place = (
            b"/%b/%b" % (allocation, SHARED.encode()),
            environment.get(b"NOMAD_ALLOC_DIR"),
        )
        whole = directory.encode() + shared
        if place != whole:
            # Only a newline ends a line: the kernel escapes no other character of a path.
            lines = _read(f"/proc/{pid}/mountinfo").removesuffix(b"\n").split(b"\n")
            mounts = [line.split(b" ") for line in lines]
            own = {one[_WHERE] for one in mounts if one[_MOUNTED_AT] == place}
            whole = whole.replace(b" ", rb"\040")
            if not any(one.endswith(shared) and whole.endswith(one) for one in own):
                return "", ""
    except OSError:  # another user's process, or it has ended
        return "", ""
    task = environment.get(b"NOMAD_TASK_NAME", b"")
    return allocation.decode(errors="replace"), task.decode(errors="replace")


def facts(pids: Iterable[int]) -> Iterator[bytes]:
    """Yield `status` and `stat` of each process."""
    for pid in pids:
        with suppress(OSError):  # it has ended
            both = _read(f"/proc/{pid}/status"), _read(f"/proc/{pid}/stat")
            yield from both


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _variables(environment: bytes) -> Mapping[bytes, bytes]:
    if b"NOMAD_ALLOC_ID=" not in environment:
        return {}
    pairs = (pair.partition(b"=") for pair in environment.split(b"\0"))
    return {name: value for name, _, value in pairs}


def send(processes: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to processes; ignore those that have ended or belong to another user."""
    for one in processes:
        with suppress(ProcessLookupError, PermissionError):
            descriptor = os.pidfd_open(one.pid)
            try:
                # The start time is unchanged after the pidfd was opened, so the process ID was not
                # reused.
                if (said := fields(one.pid)) and int(said[_STARTED]) == one.started:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)
