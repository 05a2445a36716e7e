"""The shims of tasks, and the main processes below them: how they are found, and how they ended.

A shim that this launcher has started is its child, so its number is its own until it is reaped. Any other
one is named by its claim, and is alive for as long as the claim is locked.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from daemon.launcher.places import shim_of

Key = tuple[str, str, int]  # allocation, task and attempt

_MOST_ENDED = 10_000  # attempts whose end nobody has asked for
_WALLS = 2  # processes between a shim and a task behind walls: the sandbox outside and inside
_STATE, _PARENT = 0, 1  # fields of `stat` after the name
_TO_SHIMS = frozenset({signal.SIGCONT, signal.SIGKILL})


class Shims:
    """The shims that one launcher has started."""

    def __init__(self) -> None:
        self._pids: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._statuses: dict[Key, int] = {}

    def note(self, key: Key, pid: int) -> None:
        """Remember one that was started."""
        self._pids[key], self._keys[pid] = pid, key

    def reap(self) -> None:
        """Let go of all children that have ended; each was given its pidfd before this."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._bury(ended[0], os.waitstatus_to_exitcode(ended[1]))

    def _bury(self, pid: int, status: int) -> None:
        key = self._keys.pop(pid, None)
        if key is None or self._pids.get(key) != pid:
            return
        del self._pids[key]
        if status >= 0:
            self._statuses[key] = status
        if len(self._statuses) > _MOST_ENDED:
            del self._statuses[next(iter(self._statuses))]

    def take_status(self, key: Key) -> int | None:
        """Return the exit status of a shim, once."""
        self.reap()
        return self._statuses.pop(key, None)

    def signal(
        self, folder: int | None, key: Key, name: str, *, is_walled: bool, to_shim: bool
    ) -> None:
        """Send a signal to the main process of an attempt or to its shim, if it lives. Raises `ValueError`."""
        try:
            number = signal.Signals[name]
        except KeyError:
            raise ValueError(f"{name} is no signal") from None
        with self._opened(folder, key) as shim:
            if shim is None:
                return
            pid, descriptor = shim
            if not to_shim:
                _signal_main(pid, number, is_walled=is_walled)
            elif number not in _TO_SHIMS:
                raise ValueError(f"{name} is for no shim")
            elif number == signal.SIGCONT or not any(map(_is_alive, children(pid))):
                signal.pidfd_send_signal(descriptor, number)

    @contextmanager
    def _opened(self, folder: int | None, key: Key) -> Iterator[tuple[int, int] | None]:
        """Give number and descriptor of the shim of an attempt; None: there is none any more."""
        own = self._pids.get(key)

        def claimed() -> int | None:
            return None if folder is None else shim_of(folder, *key[1:])

        pid = own or claimed()
        descriptor = _open(pid) if pid else None
        try:
            # The lock tells that the number is still the shim's, if it is held after the opening.
            is_it = descriptor is not None and (own or claimed() == pid)
            yield (pid, descriptor) if pid and descriptor is not None and is_it else None
        except ProcessLookupError:  # it has ended just now
            pass
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _signal_main(shim: int, number: signal.Signals, *, is_walled: bool) -> None:
    """Signal the main process below a shim. Raises `ProcessLookupError` when it has just ended."""
    for pid in _main(shim, is_walled=is_walled):
        if (descriptor := _open(pid)) is None:
            continue
        try:
            # Still below the shim after the opening: then it was so at the opening.
            if pid in _main(shim, is_walled=is_walled):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _main(shim: int, *, is_walled: bool) -> list[int]:
    """Return the shim's only child, or what stands behind the walls below it."""
    pids = children(shim)
    for _ in range(_WALLS if is_walled else 0):
        pids = children(pids[0]) if pids else []
    return pids


def children(pid: int) -> list[int]:
    """Return the processes that a process has started or adopted, and not waited for."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [*map(int, file.read().split())]
    except FileNotFoundError:  # the process is gone, or the kernel does not list them
        numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return [one for one in numbers if _fields(one)[_PARENT:][:1] == [b"%d" % pid]]
    except OSError:
        return []


def _is_alive(pid: int) -> bool:
    return _fields(pid)[_STATE:][:1] not in ([], [b"Z"], [b"X"])


def _fields(pid: int) -> list[bytes]:
    """Return what the kernel says of a process, behind its name; nothing when it is gone."""
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
