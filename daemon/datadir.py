"""The directories above the data directory: nobody else may be able to replace what lies in them.

The daemon acts below its data directory, as root in most services. Whoever can rename a directory on
the way to it can put links in its place. A sticky directory such as /tmp is safe: in it only the
owner of an entry can rename that entry.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path


def weak_places(path: Path) -> Iterator[str]:
    """Yield why others could replace a directory, for each directory from the root down to it."""
    trusted = {0, os.geteuid()}
    place = Path(os.path.realpath(path))
    for one in (*reversed(place.parents), place):
        found = one.stat()
        if found.st_uid not in trusted:
            yield f"user {found.st_uid} owns {str(one)!r}: give it to root, or to the daemon's user"
        elif found.st_mode & stat.S_IWOTH and (one == place or not found.st_mode & stat.S_ISVTX):
            yield f"all users can write to {str(one)!r}: run chmod o-w on it"
