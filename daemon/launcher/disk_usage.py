"""Measure the disk usage of a directory, and the latest modification time of its files.

A measurement proceeds in steps. The pause after each step is many times its duration, which leaves
nearly all CPU time to other processes. Holes in sparse files and mounts do not count. Links are not
followed.
"""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from daemon.launcher.safe_open import facts_of, open_beneath

_STEP = 2000  # files and directories that one step measures
_PAUSE = 50  # the pause, as a multiple of the duration of a step
_BLOCK = 512  # bytes, the unit of st_blocks
# Maximum number of directories, or of entries of one directory, held in memory.
_MOST_PENDING = 100_000


class DiskUsageScan:
    """A measurement of all files below an open directory."""

    def __init__(self, top: int) -> None:
        self.used = 0  # bytes so far
        self.written = 0  # latest modification time, in nanoseconds
        self._top, self._device = top, os.fstat(top).st_dev
        self._linked: set[int] = set()  # inodes with several links
        self._found = self._below()

    def step(self, most: int = _STEP) -> bool:
        """Measure `most` files and directories; return whether the measurement is complete."""
        return sum(map(self._count, islice(self._found, most))) < most

    def run(self) -> None:
        """Measure the files of all pending directories, with pauses."""
        is_over = False
        while not is_over:
            began = time.monotonic()
            is_over = self.step()
            time.sleep(0 if is_over else _PAUSE * (time.monotonic() - began))

    def _count(self, facts: os.stat_result) -> int:
        if not stat.S_ISDIR(facts.st_mode) and facts.st_nlink > 1:
            if facts.st_ino in self._linked:
                return 1
            self._linked.add(facts.st_ino)
        self.used += facts.st_blocks * _BLOCK
        if stat.S_ISREG(facts.st_mode):
            self.written = max(self.written, facts.st_mtime_ns)
        return 1

    def _below(self) -> Iterator[os.stat_result]:
        """Yield the `stat` of each accessible file and directory."""
        folders = ["."]
        while folders:
            # Files that are removed or locked concurrently are not counted.
            with suppress(OSError):
                yield from self._entries(folders)

    def _entries(self, folders: list[str]) -> Iterator[os.stat_result]:
        """Remove the last directory from `folders`, and yield the `stat` of each of its entries.

        Add its subdirectories to `folders`.
        """
        folder = folders.pop()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        directory = open_beneath(self._top, folder, flags, follows=False)
        try:
            with os.scandir(directory) as entries:
                for entry in islice(entries, _MOST_PENDING):
                    with suppress(OSError):  # removed or locked concurrently
                        facts = facts_of(directory, entry.name)
                        if facts.st_dev != self._device:
                            continue
                        if stat.S_ISDIR(facts.st_mode) and len(folders) < _MOST_PENDING:
                            folders.append(f"{folder}/{entry.name}")
                        yield facts
        finally:
            os.close(directory)
