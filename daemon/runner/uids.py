"""Users of their own for allocations: numbers of a range that no account of the machine has.

    <data directory>/tasks/uids/<allocation> -> 80001

A link says which number an allocation has. It is made before the first directory of the allocation
and removed after the last, so a number that owns a file belongs to nobody else, wherever the daemon
was killed. One allocation that takes over the data of another takes over its number. An allocation
without a link whose directory is there was started before there were such numbers.
"""

import grp
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from daemon.config import task_numbers
from daemon.datadir import UIDS

_AS_BEFORE = "none"  # the text of a link of an allocation that has no number of its own


class Exhausted(OSError):
    """All numbers of the range have an owner."""


class Uids:
    """The numbers, for one daemon. `alloc_dir` holds the directories of the allocations."""

    def __init__(self, folder: Path, alloc_dir: Path, numbers: range) -> None:
        """Read what there is, and forget what has no directory any more. Raises `OSError`."""
        self._folder, self._alloc_dir, self._numbers = folder, alloc_dir, numbers
        self._lock = Lock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._opened() as directory:
            found = {name: os.readlink(name, dir_fd=directory) for name in os.listdir(directory)}
            self._texts = {name: text for name, text in found.items() if self._is_present(name)}
            for name in found.keys() - self._texts.keys():
                os.unlink(name, dir_fd=directory)
        self._last = numbers.start - 1

    def of(self, alloc_id: str) -> int | None:
        """Return the number of an allocation, a new one if it has no directory yet.

        None: it runs as tasks did before there were numbers. Raises `Exhausted` or `OSError`.
        """
        with self._lock:
            text = self._texts.get(alloc_id)
            if text is None:
                if self._is_present(alloc_id):
                    return None
                text = str(self._free())
                self._keep(alloc_id, text)
        return int(text) if text.isdecimal() else None

    def inherit(self, alloc_id: str, previous: str) -> None:
        """Let an allocation have the number of the one whose data it takes over. Raises `OSError`."""
        with self._lock:
            if alloc_id in self._texts or self._is_present(alloc_id):
                return
            if (text := self._texts.get(previous)) is None and self._is_present(previous):
                text = _AS_BEFORE
            if text is not None:
                self._keep(alloc_id, text)

    def release(self, alloc_id: str) -> None:
        """Forget the number of an allocation whose directory is gone; one that is there keeps it."""
        with self._lock:
            if alloc_id in self._texts and not self._is_present(alloc_id):
                with self._opened() as directory, suppress(FileNotFoundError):
                    os.unlink(alloc_id, dir_fd=directory)
                del self._texts[alloc_id]

    def _keep(self, alloc_id: str, text: str) -> None:
        with self._opened() as directory:
            os.symlink(text, alloc_id, dir_fd=directory)
        self._texts[alloc_id] = text

    def _free(self) -> int:
        """Return a number that nobody has, the next after the one that was given out last."""
        taken = set(self._texts.values())
        numbers, first = self._numbers, self._last + 1 - self._numbers.start
        for step in range(len(numbers)):
            number = numbers[(first + step) % len(numbers)]
            if str(number) not in taken and not _is_account(number):
                self._last = number
                return number
        raise Exhausted(
            f"all {len(numbers)} numbers of task_uids belong to allocations: collect what has "
            "ended, or name a wider range"
        )

    def _is_present(self, alloc_id: str) -> bool:
        """Return whether anything of an allocation is left, be it on its way out."""
        place = f"{self._alloc_dir}/{alloc_id}"
        return os.path.lexists(place) or os.path.lexists(f"{place}.removed")

    @contextmanager
    def _opened(self) -> Iterator[int]:
        directory = os.open(
            self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        try:
            yield directory
        finally:
            os.close(directory)


def open_uids(setting: str, alloc_dir: Path) -> Uids | None:
    """Return the numbers for allocations; None: tasks have no users of their own here."""
    try:
        subuids = Path("/etc/subuid").read_text(encoding="utf-8", errors="replace")
    except OSError:
        subuids = ""
    numbers = task_numbers(setting, subuids)
    if numbers is None or os.geteuid() != 0:
        return None
    return Uids(alloc_dir.with_name(UIDS), alloc_dir, numbers)


def _is_account(number: int) -> bool:
    """Return whether the machine has a user or a group of this number."""
    for find in (pwd.getpwuid, grp.getgrgid):
        with suppress(KeyError):
            find(number)
            return True
    return False
