"""The user and group to whom files belong."""

import os

Owner = tuple[int, int]  # the numbers of a user and a group
ANYBODY: Owner = (-1, -1)  # users that nobody knows: those of a container's image


def ours() -> Owner:
    """Return the daemon's own user and group."""
    return os.geteuid(), os.getegid()
