"""The directories of an allocation in which artifacts may be installed. No I/O.

All other files belong to the daemon or affect the start of the task, so artifacts must not create
or replace them.
"""

import posixpath

_OWN = ("local", "secrets", "tmp")
_SHARED = "alloc/data"


def may_be_filled(path: str, task: str) -> bool:
    """Return whether artifacts of a task may be installed at `path`, a normalized path."""
    allowed_paths = (*(f"{task}/{name}" for name in _OWN), _SHARED)
    return any(path == allowed or path.startswith(f"{allowed}/") for allowed in allowed_paths)


def refusal(destination: str) -> str:
    """Return the error for a destination that is not permitted."""
    return (
        f"destination {destination!a} is not allowed: use a path below local/, secrets/, tmp/ or"
        " ${NOMAD_ALLOC_DIR}/data"
    )


def is_destination(destination: str, *, is_file: bool) -> bool:
    """Return whether at least one driver permits a destination that contains no references."""
    task = "task"
    for path in (f"{task}/{destination}", destination.lstrip("/")):
        shortest = posixpath.normpath(path)
        if may_be_filled(posixpath.dirname(shortest) if is_file else shortest, task):
            return True
    return False
