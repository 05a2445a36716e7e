"""Find the processes of attempts without cgroups, by scanning all processes.

A process belongs to an attempt in any of these cases:

- Its initial environment names the allocation and the task.
- It is in the session or process group of the task's main process.
- Its parent belongs to the attempt.

The environment only counts if it contains the path of the allocation directory, or if that
directory is mounted at `/alloc`. So the scan ignores processes of another installation with equal
names. Any user can set these variables. The scan therefore also ignores processes of users that the
attempt cannot have. Only a task of the launcher's user can have processes of any user.

The kernel shows an empty environment while a process executes a new program. Such a process is
undecided. The scan checks it again, and the action `end` reports it as a remaining process. An
undecided process counts only if it runs as a user of the attempt, so that no other user can delay
the end of the attempt.

If the main process has already exited, a stop first scans only orphans. This takes a tenth of the
work of a full scan. Other processes of the attempt descend from an orphan. So the stop scans all
processes only if it finds an orphan of the attempt.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from daemon.launcher.claims_and_logs import SHARED, attempts, below, read_claim, shim_of
from daemon.launcher.messages import MOST_PIDS, ScanTarget
from daemon.launcher.shim_script import CARRIER
from daemon.launcher.shims import OVER, STATE, children, fields, has_ended
from daemon.launcher.task_files import user_of

# Fields of `stat` after the name
_PARENT, _PROCESS_GROUP, _SESSION, _FLAGS, _STARTED, _CODE, _ENV_END = 1, 2, 3, 6, 19, 23, 48
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of linux/sched.h
_PAUSE = 0.0005  # seconds until an undecided process is checked again; twice as long each time
_ROUNDS = 8  # maximum number of scans; in between, processes may create others
_WHERE, _MOUNTED_AT = 3, 4  # fields of `mountinfo`
_READS = 3  # reads, because the environment may appear between two of them
_CARRIED = re.compile(rb"\A%b[0-9]+=" % CARRIER.encode())
_CLAIMED = re.compile(rb"^(shim|main|exit) (\d{1,9})\n", re.MULTILINE)


class Process(msgspec.Struct, frozen=True):
    """One process, as a scan found it."""

    pid: int
    parent: int
    group: int
    session: int
    allocation: str = ""
    task: str = ""
    started: int = 0  # ticks after boot
    user: int | None = None  # the user ID, only of a process that is undecided or in an allocation


class ProcessCriteria(msgspec.Struct, frozen=True):
    """The criteria for the processes of an attempt; an empty task selects all tasks."""

    allocation: str
    task: str = ""
    session: int = 0
    shim: int = 0
    has_ended: bool = False  # whether its main process has ended
    users: frozenset[int] = frozenset()  # user IDs of its processes


def sweep(directory: str, marks: Sequence[ScanTarget]) -> list[list[int]]:
    """Find the processes of each target, and apply the target's action to them.

    Return a list of process IDs for each target, from the last scan.
    """
    criteria = [_scan_criteria(directory, mark) for mark in marks]

    def find(
        scan: Callable[[str], Sequence[Process]] = list_processes,
    ) -> tuple[list[list[Process]], list[list[Process]]]:
        processes = scan(directory)
        owned = [belonging(processes, rule) for rule in criteria]
        return owned, [undecided(processes, *pair) for pair in zip(criteria, owned, strict=True)]

    are_orphans = all(
        mark.action == "end" and rule.has_ended for mark, rule in zip(marks, criteria, strict=True)
    )
    matched, unclear = find(orphans if are_orphans else list_processes)
    if are_orphans and any(matched + unclear):
        matched, unclear = find()
    stopped: set[Process] = set()
    for turn in range(_ROUNDS):
        fresh = _with(matched, marks, "hold", "end") - stopped
        if not fresh and not any(unclear):
            break
        send(fresh, signal.SIGSTOP)
        stopped |= fresh
        if any(unclear):  # on a busy host, a process may wait in the middle of exec
            time.sleep(_PAUSE * 2**turn)
        matched, unclear = find()
    send(_with(matched, marks, "end") & stopped, signal.SIGKILL)
    send(_with(matched, marks, "let_go"), signal.SIGCONT)
    most = MOST_PIDS // max(1, len(marks))
    remaining = [
        [*processes, *more] if mark.action == "end" else processes
        for processes, more, mark in zip(matched, unclear, marks, strict=True)
    ]
    return [[process.pid for process in processes[:most]] for processes in remaining]


def _with(
    processes_by_mark: Sequence[Sequence[Process]], marks: Sequence[ScanTarget], *actions: str
) -> set[Process]:
    return {
        process
        for processes, mark in zip(processes_by_mark, marks, strict=True)
        if mark.action in actions
        for process in processes
    }


def _scan_criteria(directory: str, mark: ScanTarget) -> ProcessCriteria:
    """Return the criteria for a target, including the data of the attempt's claim."""
    criteria = ProcessCriteria(mark.allocation, mark.task or "")
    try:
        with below(directory, mark.allocation) as folder:
            criteria = msgspec.structs.replace(criteria, users=_users(folder, mark.task))
            if mark.task is None or mark.attempt is None:
                return criteria
            is_held = shim_of(folder, mark.task, mark.attempt) is not None
            text, _ = read_claim(folder, mark.task, mark.attempt)
    except OSError:
        return criteria
    claim = {key: int(value) for key, value in _CLAIMED.findall(text)}
    session = claim.get(b"main", 0)
    if not is_held and os.path.exists(f"/proc/{session}"):
        session = 0  # the process ID was reused, or the shim was killed
    return msgspec.structs.replace(
        criteria, session=session, shim=claim.get(b"shim", 0), has_ended=b"exit" in claim
    )


def _users(folder: int, task: str | None) -> frozenset[int]:
    """Return the user IDs of a task's processes, and the ID of the launcher, which starts them."""
    users = {os.geteuid()}
    for name in {task} if task else {name for name, _ in attempts(folder)}:
        with suppress(OSError):  # removed
            users.add(user_of(folder, name)[0])
    return frozenset(users)


def belonging(processes: Iterable[Process], criteria: ProcessCriteria) -> list[Process]:
    """Return the processes that match the criteria, and all their descendants."""
    below_of: dict[int, list[Process]] = {}
    members = []
    for process in processes:
        below_of.setdefault(process.parent, []).append(process)
        if process.pid != criteria.shim and _matches_criteria(process, criteria):
            members.append(process)
    pids = {member.pid for member in members}
    for process in members:  # the list grows during the loop
        fresh = [child for child in below_of.get(process.pid, ()) if child.pid not in pids]
        pids.update(child.pid for child in fresh)
        members += fresh
    return members


def undecided(
    processes: Iterable[Process], criteria: ProcessCriteria, members: Iterable[Process]
) -> list[Process]:
    """Return the processes that may belong to an attempt, because their environment is unreadable.

    `members` are the processes that are known to belong to the attempt.
    """
    decided = {criteria.shim, *(member.pid for member in members)}
    unclear = (item for item in processes if not item.allocation and item.pid not in decided)
    return [item for item in unclear if item.user in criteria.users]


def _matches_criteria(process: Process, criteria: ProcessCriteria) -> bool:
    if criteria.session and criteria.session in (process.session, process.group):
        return True
    is_possible = process.user in criteria.users or criteria.users <= {os.geteuid()}
    is_named = process.allocation == criteria.allocation and criteria.task in {"", process.task}
    return is_named and is_possible


def list_processes(directory: str) -> list[Process]:
    """Return all live processes, except the launcher and the daemon."""
    own_pids = (os.getpid(), os.getppid())
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [item for pid in pids if pid not in own_pids and (item := _process(pid, directory))]


def orphans(directory: str) -> list[Process]:
    """Return the children of the processes that can adopt orphans.

    Only process 1 and the ancestors of the launcher can be the new parent of an orphan. The result
    can contain processes that are not orphans.
    """
    adopters, pid = {1}, os.getpid()
    while pid > 1 and (values := fields(pid)):
        pid = int(values[_PARENT])
        adopters.add(pid)
    pids = {child for adopter in adopters for child in children(adopter)} - adopters
    return [process for pid in pids - {os.getpid()} if (process := _process(pid, directory))]


def _process(pid: int, directory: str) -> Process | None:
    values = fields(pid)
    if has_ended(values):
        return None
    user, (allocation, task) = None, ("", "")
    try:
        thread = _readable_thread(pid, values)
        environment = _environment(pid, thread)
        allocation, task = _owner(thread, _variables(environment or b""), directory)
        user = _user(pid) if environment is None or allocation else None
    except OSError:  # another user's process, or it has ended
        pass
    return Process(
        pid=pid,
        parent=int(values[_PARENT]),
        group=int(values[_PROCESS_GROUP]),
        session=int(values[_SESSION]),
        allocation=allocation,
        task=task,
        started=int(values[_STARTED]),
        user=user,
    )


def _readable_thread(pid: int, values: Sequence[bytes]) -> str:
    """Return the /proc directory of a process or, if its first thread has ended, of another thread.

    Raises `OSError`.
    """
    if values[STATE] not in OVER:
        return f"/proc/{pid}"
    tasks = f"/proc/{pid}/task"
    return f"{tasks}/{max(map(int, os.listdir(tasks)), key=lambda tid: tid != pid)}"


def _environment(pid: int, directory: str) -> bytes | None:
    """Return the initial environment of a process; None while the kernel sets it up or removes it.

    Raises `OSError`.
    """
    for _ in range(_READS):
        with suppress(ProcessLookupError):  # newer kernels report this for a process without memory
            if text := _read(f"{directory}/environ"):
                return text
        values = fields(pid)
        if values and int(values[_FLAGS]) & _KERNEL_THREAD:
            return b""
        if values and int(values[_CODE]) and b"0" != values[_ENV_END] == values[_ENV_END - 1]:
            # The process has no variables. Until the kernel has set up the variables of a new
            # program, the start of the code is 0.
            return b""
    return None


def _user(pid: int) -> int:
    """Return the real user ID of a process. Raises `OSError`."""
    lines = _read(f"/proc/{pid}/status").split(b"\n")
    return next(int(line.split()[1]) for line in lines if line.startswith(b"Uid:"))


def _owner(thread: str, environment: Mapping[bytes, bytes], directory: str) -> tuple[str, str]:
    """Return the allocation and task that a process's environment names.

    Return two empty strings if the process belongs to no allocation below `directory`. Raises
    `OSError`.
    """
    allocation = environment.get(b"NOMAD_ALLOC_ID", b"")
    if not allocation:
        return "", ""
    shared, path = (
        b"/%b/%b" % (allocation, SHARED.encode()),
        environment.get(b"NOMAD_ALLOC_DIR"),
    )
    full_path = directory.encode() + shared
    if path != full_path:
        # Only a newline ends a line: the kernel escapes no other character of a path.
        lines = _read(f"{thread}/mountinfo").removesuffix(b"\n").split(b"\n")
        mounts = [line.split(b" ") for line in lines]
        own = {mount[_WHERE] for mount in mounts if mount[_MOUNTED_AT] == path}
        full_path = full_path.replace(b" ", rb"\040")
        if not any(mount.endswith(shared) and full_path.endswith(mount) for mount in own):
            return "", ""
    task = environment.get(b"NOMAD_TASK_NAME", b"")
    return allocation.decode(errors="replace"), task.decode(errors="replace")


def facts(pids: Iterable[int]) -> Iterator[bytes]:
    """Yield the contents of `status` and `stat` of each process."""
    for pid in pids:
        with suppress(OSError):  # it has ended
            yield from (_read(f"/proc/{pid}/status"), _read(f"/proc/{pid}/stat"))


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _variables(environment: bytes) -> Mapping[bytes, bytes]:
    if b"NOMAD_ALLOC_ID=" not in environment:
        return {}
    # Until a process runs as the task's user, it has the variables under other names.
    pairs = (_CARRIED.sub(b"", entry).partition(b"=") for entry in environment.split(b"\0"))
    return {name: value for name, _, value in pairs}


def send(processes: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to processes; ignore those that have ended or belong to another user."""
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or has another user
            descriptor = os.pidfd_open(process.pid)
            try:
                # The start time is unchanged after the pidfd was opened, so the process ID was not
                # reused.
                if (values := fields(process.pid)) and int(values[_STARTED]) == process.started:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)
