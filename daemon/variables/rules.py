"""Which variables there may be: their paths and sizes. Pure."""

import re
from collections.abc import Mapping

from daemon.jobspec.gotext import quote

MAX_SIZE = 64 * 1024  # bytes of names and values together
_PATH = re.compile(r"[a-zA-Z0-9\-_~/]{1,128}")
RESERVED = "nomad"  # its folders belong to jobs; the peer's clients know them
_JOBS, _TEMPLATES = "jobs", "job-templates"


def fault_of_path(path: str) -> str:
    """Return why a variable cannot be at a path; empty when it can (golden: variables)."""
    if not _PATH.fullmatch(path):
        return f"invalid path {quote(path)}"
    top, *below = path.split("/")
    if top != RESERVED or below[:1] == [_JOBS]:
        return ""
    if below[:1] == [_TEMPLATES]:
        if len(below) == 2 and below[1]:
            return ""
        return f'a template stands one level below "{RESERVED}/{_TEMPLATES}", not at {quote(path)}'
    return (
        f'only paths at "{RESERVED}/{_JOBS}" or "{RESERVED}/{_TEMPLATES}" and below are valid paths '
        f'under the top-level "{RESERVED}" directory'
    )


def fault_of_items(items: Mapping[str, str]) -> str:
    """Return why a variable cannot have these values; empty when it can."""
    size = sum(len(name.encode()) + len(value.encode()) for name, value in items.items())
    if size > MAX_SIZE:
        return f"variables are limited to 64KiB in total size, this one has {size} bytes"
    return ""
