"""Files next to the database: the WAL watermark, and the units of work in progress.

Without its write-ahead log, or with a truncated one, SQLite opens an older state without an error.
The watermark holds the index of the last acknowledged write, and whether the file was closed
cleanly. Steward writes it after each commit without fsync. After a crash of the host it may be too
low, but never too high.

The `Hand` file names the units of work in progress, so that a restart finds the unit that
crashed the daemon. Steward writes the file before the work, without fsync. It survives a crash of
the process, but not a power failure.
"""

import errno
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

MARK_NAME = "steward.index"
_TEXT = "{state:<6} {index:020}\n"
HAND_NAME = "steward.hand"
_LENGTH = 10  # digits of the length before the text, so that one write can replace a longer text
_MOST = 1 << 20  # bytes
_NAMES = msgspec.json.Decoder(list[tuple[str, str]])
Name = tuple[str, str]  # kind and key of a unit of work
_FORM = re.compile(rb"(open|closed) +(\d{20})\n")


class WalWatermark:
    """The watermark of a store. `index` and `was_open` are the values that the last daemon left."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / MARK_NAME
        self._descriptor: int | None = None
        match = _FORM.fullmatch(self._path.read_bytes()) if self._path.is_file() else None
        self.was_open = match is not None and match[1] == b"open"
        self.index = int(match[2]) if match else 0

    def begin(self, index: int) -> None:
        """Record in the watermark file that the database is open.

        If the disk is full, do nothing: the next watermark that can be written records it. Until
        then, the file contains the old watermark, which is too low. Raises `OSError`.
        """
        try:
            os.fsync(self._write("open", index))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def record(self, index: int) -> None:
        """Record that all writes up to this index are on disk."""
        with suppress(OSError):  # a watermark that is too low only detects less
            self._write("open", index)

    def end(self, index: int) -> None:
        """Record that the file was closed cleanly."""
        if self._descriptor is None:
            return
        with suppress(OSError):  # the next start then checks the file
            self._write("closed", index)
        os.close(self._descriptor)
        self._descriptor = None

    def _write(self, state: str, index: int) -> int:
        """Write the watermark; return the descriptor of its file. Raises `OSError`."""
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o600)
        os.pwrite(self._descriptor, _TEXT.format(state=state, index=index).encode(), 0)
        return self._descriptor


def delete_watermark(directory: Path) -> None:
    """Delete the watermark, because another file replaces the store. Raises `OSError`."""
    (directory / MARK_NAME).unlink(missing_ok=True)


class Hand:
    """The file with the units of work in progress. `found` has the units of a crashed daemon."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / HAND_NAME
        self._descriptor: int | None = None
        self.found = self._read()

    def _read(self) -> list[Name]:
        try:
            text = self._path.read_bytes()[: _MOST + _LENGTH]
            return _NAMES.decode(text[_LENGTH : _LENGTH + int(text[:_LENGTH])])
        except (OSError, ValueError):  # missing or incomplete
            return []

    def record(self, names: Iterable[Name]) -> None:
        """Record the units in progress.

        A write error is ignored: its only effect is that a restart cannot find the unit that
        crashed the daemon.
        """
        text = msgspec.json.encode(sorted(names))
        if len(text) > _MOST:
            return
        with suppress(OSError):  # a restart cannot find the unit that crashed the daemon
            if self._descriptor is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptor = os.open(self._path, flags, 0o600)
            os.pwrite(self._descriptor, b"%0*d" % (_LENGTH, len(text)) + text, 0)

    def close(self) -> None:
        """Record that no unit is in progress, and close the file."""
        self.record(())
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
