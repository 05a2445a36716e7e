"""Find and signal shims and the main processes below them.

A shim that this launcher started is its child, so its process ID is valid until it is reaped. Any
other shim is identified by its claim, and is alive as long as the claim is locked.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from daemon.launcher.claims_and_logs import shim_of

Key = tuple[str, str, int]  # allocation, task and attempt

_MOST_ENDED = 10_000  # maximum number of exit statuses that were not requested yet
_WALLS = 2  # processes between a shim and a sandboxed task: bwrap outside and inside
STATE, _PARENT, _THREADS = 0, 1, 17  # fields of `stat` after the name
OVER = (b"Z", b"X")  # states of a thread that has ended
_ENDED = os.WEXITED | os.WSTOPPED
_TO_SHIMS = frozenset({signal.SIGCONT, signal.SIGKILL})


class Shims:
    """The shims that one launcher has started."""

    def __init__(
        self,
        end_others: Callable[[int, int], None],
        halted: Callable[[int], None] = lambda _: None,
        ending: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Set the callbacks for ended and for stopped children.

        `end_others` is called for each ended child that is not a shim, and `halted` for each
        stopped child. `ending` is called for each ended child before it is reaped, while its
        process ID is not reused.
        """
        self._end_others, self._halted, self._ending = end_others, halted, ending
        self._pids: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._statuses: dict[Key, int] = {}

    def register(self, key: Key, pid: int) -> None:
        """Register a started shim."""
        self._pids[key], self._keys[pid] = pid, key

    def reap(self) -> None:
        """Reap all ended children; the daemon already has their pidfds."""
        with suppress(ChildProcessError):  # there are no children
            while ended := os.waitid(os.P_ALL, 0, _ENDED | os.WNOHANG | os.WNOWAIT):
                if ended.si_code == os.CLD_STOPPED:
                    self._halted(ended.si_pid)
                else:
                    self._ending(ended.si_pid)
                # WNOHANG, because a stopped child may continue at any time.
                pid, status = os.waitpid(ended.si_pid, os.WUNTRACED | os.WNOHANG)
                if pid and not os.WIFSTOPPED(status):
                    self._record_exit(pid, os.waitstatus_to_exitcode(status))

    def _record_exit(self, pid: int, status: int) -> None:
        key = self._keys.pop(pid, None)
        if key is None:
            self._end_others(pid, status)
        if key is None or self._pids.get(key) != pid:
            return
        del self._pids[key]
        if status >= 0:
            self._statuses[key] = status
        if len(self._statuses) > _MOST_ENDED:
            del self._statuses[next(iter(self._statuses))]

    def pid_of(self, key: Key) -> int | None:
        """Return the process ID of a shim that this launcher has started and not reaped."""
        return self._pids.get(key)

    def take_status(self, key: Key) -> int:
        """Return the exit status of a shim; -1 if it is unknown or was returned before."""
        self.reap()
        return self._statuses.pop(key, -1)

    def signal(
        self, folder: int | None, key: Key, name: str, *, is_walled: bool, to_shim: bool
    ) -> bool:
        """Send a signal to the main process of an attempt, or with `to_shim` to its shim.

        `is_walled` means that the task is in a sandbox. Return whether the signal was sent. A main
        process that is still the shell would ignore the signal, so only SIGKILL is sent to it.
        Raises `ValueError`.
        """
        try:
            number = signal.Signals[name]
        except KeyError:
            raise ValueError(f"{name} is not a signal") from None
        if to_shim and number not in _TO_SHIMS:
            raise ValueError(f"{name} cannot be sent to a shim, only SIGCONT and SIGKILL")
        with self.opened(folder, key) as shim:
            if shim is None:
                return False
            pid, descriptor = shim
            if not to_shim:
                return _signal_main(pid, number, is_walled=is_walled)
            if number == signal.SIGCONT or all(has_ended(fields(child)) for child in children(pid)):
                signal.pidfd_send_signal(descriptor, number)
                return True
        return False

    @contextmanager
    def opened(self, folder: int | None, key: Key) -> Iterator[tuple[int, int] | None]:
        """Yield the process ID and a pidfd of an attempt's shim, or None if the shim has ended."""
        own = self._pids.get(key)

        def claimed() -> int | None:
            return None if folder is None else shim_of(folder, *key[1:])

        pid = own or claimed()
        descriptor = _open(pid) if pid else None
        try:
            # If the claim is locked after the pidfd was opened, the process ID is still the shim's.
            is_it = descriptor is not None and (own or claimed() == pid)
            yield (pid, descriptor) if pid and descriptor is not None and is_it else None
        except ProcessLookupError:  # it has just ended
            pass
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _signal_main(shim: int, number: signal.Signals, *, is_walled: bool) -> bool:
    """Signal the main process below a shim or, with `is_walled`, below its sandbox.

    Return whether the signal was sent. Raises `ProcessLookupError` if the process has just ended.
    """
    for pid in _main(shim, is_walled=is_walled):
        has_begun = is_walled or number == signal.SIGKILL or os.getsid(pid) == pid
        if not has_begun or (descriptor := _open(pid)) is None:
            continue
        try:
            # The process is still below the shim after the pidfd was opened, so its ID was not
            # reused.
            if pid in _main(shim, is_walled=is_walled):
                signal.pidfd_send_signal(descriptor, number)
                return True
        finally:
            os.close(descriptor)
    return False


def _main(shim: int, *, is_walled: bool) -> list[int]:
    """Return the only child of the shim; with `is_walled`, the process below its sandbox."""
    pids = children(shim)
    for _ in range(_WALLS if is_walled else 0):
        pids = children(pids[0]) if pids else []
    return pids


def children(pid: int) -> list[int]:
    """Return the process IDs of the unreaped children of a process, including adopted children."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [*map(int, file.read().split())]
    except FileNotFoundError:  # the process has ended, or the kernel does not list children
        numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return [child for child in numbers if fields(child)[_PARENT:][:1] == [b"%d" % pid]]
    except OSError:
        return []


def has_ended(values: Sequence[bytes]) -> bool:
    """Return whether a process has ended, given the fields of its `stat`.

    A process whose first thread has ended is still alive as long as it has other threads.
    """
    return not values or (values[STATE] in OVER and int(values[_THREADS]) <= 1)


def fields(pid: int) -> list[bytes]:
    """Return the fields of `stat` after the name; empty if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def is_ours(pid: int) -> bool:
    """Return whether all user IDs of a process are the launcher's.

    The result is false for all processes of a task that has another user.
    """
    with suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:  # it has ended
        users = next(line for line in file if line.startswith(b"Uid:")).split()[1:]
        return {*map(int, users)} == {os.geteuid()}
    return False
