"""Check the text of relative paths; `daemon/launcher/safe_open.py` accesses the files."""

import os
import posixpath

from storage.errors import Refused

_LONGEST = 4095  # bytes of a path, without the zero byte at its end


class PathEscape(Refused):
    """A path points outside its base directory; the message is Nomad's."""

    def __init__(self, message: str = "Path escapes the alloc directory") -> None:
        super().__init__(message)


class PathTooLong(PathEscape):
    """A path is longer than the kernel and the launcher accept."""

    def __init__(self) -> None:
        super().__init__(f"a path has more than {_LONGEST} bytes")


def fitting_path(path: str) -> str:
    """Return the path unchanged. Raises `PathTooLong` if the kernel would not accept it."""
    if len(os.fsencode(path)) > _LONGEST:
        raise PathTooLong
    return path


def relative_path(path: str) -> str:
    """Return a normalized relative path without a leading slash.

    Raises `PathEscape` if the text of the path alone shows that it leaves the base directory.
    """
    shortest = posixpath.normpath(path.lstrip("/") or ".")
    if shortest == ".." or shortest.startswith("../"):
        raise PathEscape
    return "" if shortest == "." else shortest


def open_directory(path: str) -> int:
    """Open a directory that only the daemon can write to. Raises `OSError`."""
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
