"""What is known beside the file of how far it was: so that a lost log does not pass for an older truth.

SQLite takes a file without its write-ahead log, or with one that was cut, for what it was before, and
would go on from there. The mark holds the index of the last write that was answered, and whether the file
was closed in order afterwards. It is written behind each commit and not waited for: a crash of the machine
may leave one that is too low, never one that is too high.
"""

import errno
import os
import re
from contextlib import suppress
from pathlib import Path

MARK_NAME = "steward.index"
_TEXT = "{state:<6} {index:020}\n"
_FORM = re.compile(rb"(open|closed) +(\d{20})\n")


class Mark:
    """The mark of a store: as it was found, and as it is written from `begin` on."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / MARK_NAME
        self._descriptor: int | None = None
        found = _FORM.fullmatch(self._path.read_bytes()) if self._path.is_file() else None
        self.was_open = found is not None and found[1] == b"open"
        self.index = int(found[2]) if found else 0

    def begin(self, index: int) -> None:
        """Note that the file is open from now on; on a full disk, with the first write that has room.

        Until then it says what it did before, which is too low. Raises `OSError`.
        """
        try:
            os.fsync(self._write("open", index))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def note(self, index: int) -> None:
        """Note that everything up to this index is on disk."""
        with suppress(OSError):  # it stays too low then, which only makes it blind
            self._write("open", index)

    def end(self, index: int) -> None:
        """Note that the file was closed in order."""
        if self._descriptor is None:
            return
        with suppress(OSError):
            self._write("closed", index)
        os.close(self._descriptor)
        self._descriptor = None

    def _write(self, state: str, index: int) -> int:
        """Write the mark; return the descriptor of its file. Raises `OSError`."""
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o600)
        os.pwrite(self._descriptor, _TEXT.format(state=state, index=index).encode(), 0)
        return self._descriptor


def forget(directory: Path) -> None:
    """Remove the mark: another file takes the place of the store. Raises `OSError`."""
    (directory / MARK_NAME).unlink(missing_ok=True)
