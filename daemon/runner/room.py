"""Room for what is to come: directories of ended allocations go, the oldest first.

They are kept for people to look at, as long as there are not too many of them and the file
system has space left. What runs is never touched, and neither is what the store knows of those
that have ended: only their files and logs go.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import trio

from daemon.config import Config

_log = logging.getLogger("steward.runner")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How many ended allocations keep their directory, and how full the file system may be."""

    allocations: int
    disk_percent: int
    inode_percent: int


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """How full a file system is, in percent, as `df` counts."""

    disk: float
    inodes: float


def look(place: Path) -> Use:
    """Return how full the file system of a directory is. Raises `OSError`."""
    facts = os.statvfs(place)
    return Use(
        disk=_percent(facts.f_blocks - facts.f_bfree, facts.f_bavail),
        inodes=_percent(facts.f_files - facts.f_ffree, facts.f_favail),
    )


def _percent(used: int, free: int) -> float:
    return 100 * used / (used + free) if used + free else 0.0


def reason(kept: int, use: Use, bounds: Bounds) -> str:
    """Return why there are too many directories of ended allocations; empty: there are not.

    >>> reason(3, Use(disk=91.5, inodes=0), Bounds(allocations=9, disk_percent=90, inode_percent=90))
    'the disk is full to 92 %, more than 90 %'
    """
    if kept > bounds.allocations:
        return f"{kept} are kept, more than {bounds.allocations}"
    if use.disk > bounds.disk_percent:
        return f"the disk is full to {use.disk:.0f} %, more than {bounds.disk_percent} %"
    if use.inodes > bounds.inode_percent:
        return f"{use.inodes:.0f} % of the inodes are in use, more than {bounds.inode_percent} %"
    return ""


async def keep_room(
    config: Config,
    ended: Callable[[], Awaitable[Sequence[str]]],
    remove: Callable[[str], Awaitable[None]],
) -> None:
    """Look from time to time, and remove what is too much, until cancelled.

    `ended` returns the allocations that have ended and a directory, the oldest first.
    """
    bounds = Bounds(
        allocations=config.gc_max_allocs,
        disk_percent=config.gc_disk_usage_threshold,
        inode_percent=config.gc_inode_usage_threshold,
    )
    while True:
        await trio.sleep(config.gc_interval_seconds)
        await make_room(
            await ended(), bounds, measure=partial(look, config.alloc_dir), remove=remove
        )


async def make_room(
    ended: Sequence[str],
    bounds: Bounds,
    *,
    measure: Callable[[], Use],
    remove: Callable[[str], Awaitable[None]],
) -> None:
    """Remove directories of ended allocations, the oldest first, until no bound is exceeded."""
    for number, alloc_id in enumerate(ended):
        try:
            use = await trio.to_thread.run_sync(measure)
        except OSError as error:
            _log.warning("cannot see how full the disk is: %s", error)
            return
        if not (why := reason(len(ended) - number, use, bounds)):
            return
        _log.info("the files of allocation %s, which has ended, are removed: %s", alloc_id, why)
        await remove(alloc_id)
