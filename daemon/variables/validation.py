"""Validation of variables: paths and sizes. No I/O."""

import re
from collections.abc import Mapping

from daemon.text.go_format import quote

MAX_SIZE = 64 * 1024  # bytes of names and values together
_PATH = re.compile(r"[a-zA-Z0-9\-_~/]{1,128}")
RESERVED = "nomad"  # its subdirectories belong to jobs, and Nomad's clients know them
_JOBS, _TEMPLATES = "jobs", "job-templates"


def path_error(path: str) -> str:
    """Return why a path is invalid for a variable; empty if it is valid.

    Source: Nomad's recorded responses `variables`.
    """
    if not _PATH.fullmatch(path):
        return f"invalid path {quote(path)}"
    top, *below = path.split("/")
    if top != RESERVED or below[:1] == [_JOBS]:
        return ""
    if below[:1] == [_TEMPLATES]:
        if len(below) == 2 and below[1]:
            return ""
        return f'a template must be one level below "{RESERVED}/{_TEMPLATES}", not at {quote(path)}'
    return (
        f'only paths at "{RESERVED}/{_JOBS}" or "{RESERVED}/{_TEMPLATES}" and below are valid paths '
        f'under the top-level "{RESERVED}" directory'
    )


def items_error(items: Mapping[str, str]) -> str:
    """Return why items are invalid for a variable; empty if they are valid."""
    size = sum(len(name.encode()) + len(value.encode()) for name, value in items.items())
    if size > MAX_SIZE:
        return f"variables are limited to 64KiB in total size, this one has {size} bytes"
    return ""
