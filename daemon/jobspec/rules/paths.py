"""Path checks: a job's paths must stay within the allocation directory."""

import posixpath

# Only the number of levels counts, not the names.
_ALLOCATION = "/allocations/allocation"


def escapes(folder: str, path: str) -> bool:
    """Return whether a path, relative to a task directory, leaves the allocation directory."""
    target = posixpath.normpath(f"{_ALLOCATION}/{folder}/{path}")
    return posixpath.relpath(target, _ALLOCATION).startswith("..")


def is_below(parent: str, path: str) -> bool:
    """Return whether a path equals a directory or is inside it.

    Return False if one of them is absolute and the other is relative.
    """
    if posixpath.isabs(parent) != posixpath.isabs(path):
        return False
    return not posixpath.relpath(path or ".", parent or ".").startswith("..")
