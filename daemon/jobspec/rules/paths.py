"""Where the paths of a job lead: they may move about in the allocation's directory, not leave it."""

import posixpath

# Only the number of levels counts, not the names.
_ALLOCATION = "/allocations/allocation"


def escapes(folder: str, path: str) -> bool:
    """Tell whether a path, taken from a folder of the allocation, leads out of the allocation."""
    target = posixpath.normpath(f"{_ALLOCATION}/{folder}/{path}")
    return posixpath.relpath(target, _ALLOCATION).startswith("..")


def is_below(parent: str, path: str) -> bool:
    """Tell whether a path is a directory or lies below it; false when that cannot be told."""
    if posixpath.isabs(parent) != posixpath.isabs(path):
        return False
    return not posixpath.relpath(path or ".", parent or ".").startswith("..")
