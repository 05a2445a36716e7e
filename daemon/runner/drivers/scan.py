"""Groups of processes where the kernel keeps no account: found by looking at all processes.

A process belongs to an attempt when it carries the allocation and the task in the environment
that it was started with, is in the session or process group of the task's main process, or was
started by one that belongs. A process that clears its environment, leaves its session and loses
its parent cannot be found; a node says so in its attributes.

When the main process has ended by itself, only orphans are looked at: what it has left behind has
no parent any more, or descends from such a process. That is a tenth of the work.

All who want to know at the same moment share one look, in a thread, and looks keep a distance
that leaves most of a processor to others.
"""

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import trio

from daemon.runner.drivers.claim import Trace

_PROC = Path("/proc")
_PATIENCE = 10.0  # seconds, as for control groups
_SHARE = 10  # a look is followed by a pause of this many times its own length
_PARENT, _PROCESS_GROUP, _SESSION = 1, 2, 3  # fields of `stat` after the name
_STATE = 0


class Mark(msgspec.Struct, frozen=True):
    """By what the processes of an attempt are known; no task means every task's."""

    alloc_id: str
    task: str = ""
    session: int = 0
    shim: int = 0
    orphans: bool = False  # only orphans matter


class Process(msgspec.Struct, frozen=True):
    """A process, as a look finds it."""

    pid: int
    parent: int
    group: int
    session: int
    alloc_id: str
    task: str


class Scan:
    """The processes of one attempt at a task."""

    entry = ""
    label = "-"

    def __init__(self, scanner: "Scanner", alloc_id: str, task: str) -> None:
        self._scanner, self._alloc_id, self._task = scanner, alloc_id, task

    def is_populated(self) -> bool:
        """Say no: nobody keeps account, and a look at all processes is too much for each start."""
        return False

    def prepare(self) -> None:
        """Nothing to do: nobody keeps account."""

    def _mark(self, trace: Trace) -> Mark:
        return Mark(self._alloc_id, self._task, trace.main, trace.shim)

    async def clear(self, trace: Trace) -> str:
        """End every process that can be found; return what could not be ended, or nothing."""
        mark = self._mark(trace)
        if trace.status is not None and not await self._scanner.find(
            msgspec.structs.replace(mark, orphans=True)
        ):
            return ""
        found: list[int] = []
        with trio.move_on_after(_PATIENCE):
            while found := await self._scanner.find(mark):
                await self._hold_all(mark, found)
        return f"processes that do not end: {' '.join(map(str, found))}" if found else ""

    async def _hold_all(self, mark: Mark, found: list[int]) -> None:
        """Kill processes, held first: one that stands still starts no new one in the meantime."""
        held: set[int] = set()
        while fresh := set(found) - held:
            send(fresh, signal.SIGSTOP)
            held |= fresh
            found = await self._scanner.find(mark)
        send(held & set(found), signal.SIGKILL)

    async def members(self, trace: Trace) -> list[int]:
        """Return the processes that can be found."""
        return await self._scanner.find(self._mark(trace))

    async def pause(self, trace: Trace) -> None:
        """Stop every process."""
        held: set[int] = set()
        while fresh := set(await self._scanner.find(self._mark(trace))) - held:
            send(fresh, signal.SIGSTOP)
            held |= fresh

    async def resume(self, trace: Trace) -> None:
        """Let every process go on."""
        send(await self._scanner.find(self._mark(trace)), signal.SIGCONT)


class Scanner:
    """The looks at all processes. One at a time; each serves everyone who waits for one."""

    parent = ""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._wanted: set[Mark] = set()
        self._found: dict[Mark, list[int]] = {}
        self._not_before = 0.0

    @property
    def attributes(self) -> dict[str, str]:
        """Return what a node says of it."""
        return {
            "containment": "scan",
            "unenforced.stop": (
                "a process that clears its environment, leaves its session and loses its parent "
                "outlives its task; let the daemon make control groups to prevent it"
            ),
        }

    def of(self, alloc_id: str, task: str, *, pinned: bool = False) -> Scan:
        """Return the group for attempts at a task."""
        return Scan(self, alloc_id, task)

    def release(self) -> bool:
        """Nothing was made."""
        return True

    async def find(self, mark: Mark) -> list[int]:
        """Return the processes of an attempt, as a look finds them that began after the call."""
        self._wanted.add(mark)
        self._found.pop(mark, None)
        async with self._lock:
            if mark not in self._found:
                self._wanted.add(mark)  # whoever looked before may have been cancelled
                await self._look()
            return self._found.pop(mark, [])

    async def _look(self) -> None:
        await trio.sleep_until(self._not_before)
        marks, self._wanted = self._wanted, set()
        began = trio.current_time()
        everything = any(not mark.orphans for mark in marks)
        processes = await trio.to_thread.run_sync(look if everything else look_at_orphans)
        ended = trio.current_time()
        self._not_before = ended + _SHARE * (ended - began)
        for mark in marks:
            self._found[mark] = belonging(processes, mark)


def belonging(processes: Iterable[Process], mark: Mark) -> list[int]:
    """Return which processes a mark means, children of such processes included."""
    children: dict[int, list[int]] = {}
    found = []
    for one in processes:
        children.setdefault(one.parent, []).append(one.pid)
        if one.pid != mark.shim and _is_meant(one, mark):
            found.append(one.pid)
    known = set(found)
    for pid in found:  # grows as it goes
        fresh = [child for child in children.get(pid, ()) if child not in known]
        known.update(fresh)
        found += fresh
    return found


def _is_meant(process: Process, mark: Mark) -> bool:
    if mark.session and mark.session in (process.session, process.group):
        return True
    return process.alloc_id == mark.alloc_id and mark.task in {"", process.task}


def look() -> list[Process]:
    """Return all processes that are alive."""
    own = os.getpid()
    return [found for pid in _pids() if pid != own and (found := _process(pid)) is not None]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdecimal()]


def session(leader: int) -> list[int]:
    """Return the processes of a session, named by the process that leads it."""
    found = []
    for pid in _pids():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


def look_at_orphans() -> list[Process]:
    """Return the processes whose parent has ended, and what else those that adopt them started."""
    adopters = {1, *_ancestors(os.getpid())}
    pids = {child for adopter in adopters for child in children(adopter)}
    return [found for pid in pids if (found := _process(pid)) is not None]


def _ancestors(pid: int) -> list[int]:
    """Return the parents of a process up to the first: an orphan becomes the child of one of them."""
    found: list[int] = []
    while pid > 1:
        try:
            pid = int(_read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[_PARENT])
        except OSError:
            break
        found.append(pid)
    return found


def children(pid: int) -> list[int]:
    """Return the processes that a process has started or adopted, and not waited for."""
    try:
        return [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]
    except FileNotFoundError:
        if not os.path.exists(f"/proc/{pid}"):
            return []
        # A kernel that does not list them.
        return [process.pid for process in look() if process.parent == pid]
    except OSError:
        return []


def _process(pid: int) -> Process | None:
    try:
        status = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    if status[_STATE] in {b"Z", b"X"}:
        return None
    try:
        environment = _variables(_read(f"/proc/{pid}/environ"))
    except OSError:  # another user's
        environment = {}
    return Process(
        pid=pid,
        parent=int(status[_PARENT]),
        group=int(status[_PROCESS_GROUP]),
        session=int(status[_SESSION]),
        alloc_id=environment.get(b"NOMAD_ALLOC_ID", b"").decode(errors="replace"),
        task=environment.get(b"NOMAD_TASK_NAME", b"").decode(errors="replace"),
    )


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        text = b""
        while more := os.read(descriptor, 131072):
            text += more
        return text
    finally:
        os.close(descriptor)


def _variables(environment: bytes) -> Mapping[bytes, bytes]:
    if b"NOMAD_ALLOC_ID=" not in environment:
        return {}
    pairs = (pair.partition(b"=") for pair in environment.split(b"\0"))
    return {name: value for name, _, value in pairs}


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; those that are gone, or another user's, do not matter."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue
