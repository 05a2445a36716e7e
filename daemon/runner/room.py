"""Room for what is to come: directories of ended allocations go, the oldest first.

They are kept for people to look at, as long as there are not too many of them, those of a job do
not hold too much, and the file system has space left. What runs is never touched, and neither is what the store knows of those
that have ended: only their files and logs go.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import trio

from daemon.clock import Clock
from daemon.config import Config
from daemon.runner import kept_logs
from daemon.runner.beneath import below
from storage.records.base import SECOND

_LOGS_LOOKED_AT = 600  # every so many seconds: there may be many

_log = logging.getLogger("steward.runner")
Key = tuple[str, str]  # namespace and id of a job
_MB = 1_000_000
_BLOCK = 512  # bytes: what `st_blocks` counts


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


def size(place: Path) -> int:
    """Return the bytes that a directory holds on its disk; what cannot be seen counts for nothing."""
    return sum(one.st_blocks * _BLOCK for one in below(str(place)))


def beyond(
    ended: Sequence[str], owners: Mapping[str, Key], sizes: Mapping[str, int], most: int
) -> list[str]:
    """Return which allocations are too much, oldest first: those of a job hold more than `most` bytes.

    `ended` has the oldest first. The newest of each job stays, however large it is.

    >>> owners = dict.fromkeys("abc", ("default", "web"))
    >>> beyond("abc", owners, {"a": 5, "b": 5, "c": 5}, most=10)
    ['a']
    """
    held: dict[Key, int] = {}
    found = []
    for alloc_id in reversed(ended):
        if (owner := owners.get(alloc_id)) is None:
            continue
        is_newest = owner not in held
        held[owner] = held.get(owner, 0) + sizes[alloc_id]
        if held[owner] > most and not is_newest:
            found.append(alloc_id)
    return found[::-1]


async def in_rounds(
    name: str, work: Callable[[], Awaitable[None]], *, period: float, first: float
) -> None:
    """Do some work after `first` seconds and then again every `period` seconds, until cancelled.

    After an `OSError` the next round follows in its time.
    """
    await trio.sleep(first)
    while True:
        try:
            await work()
        except OSError as error:
            _log.warning("%s: this round failed, the next follows in %g s: %s", name, period, error)
        await trio.sleep(period)


async def keep_room(
    config: Config,
    ended: Callable[[], Awaitable[Sequence[str]]],
    owners: Callable[[Sequence[str]], Awaitable[Mapping[str, Key]]],
    remove: Callable[[str], Awaitable[None]],
) -> None:
    """Look from time to time, and remove what is too much, until cancelled.

    `ended` returns the allocations that have ended and a directory, the oldest first; `owners` the
    jobs of some.
    """
    sizes: dict[str, int] = {}  # what has ended does not grow any more
    bounds = Bounds(
        allocations=config.gc_max_allocs,
        disk_percent=config.gc_disk_usage_threshold,
        inode_percent=config.gc_inode_usage_threshold,
    )

    async def look_once() -> None:
        nonlocal sizes
        found = await ended()
        if most := config.retention_alloc_mb * _MB:
            sizes = {one: sizes.get(one) or await _size(config, one) for one in found}
            gone = beyond(found, await owners(found), sizes, most)
            for alloc_id in gone:
                _log.info(
                    "the files of allocation %s, which has ended, are removed: those of its job"
                    " hold more than %d MB",
                    *(alloc_id, config.retention_alloc_mb),
                )
                await remove(alloc_id)
            found = [one for one in found if one not in set(gone)]
        await make_room(found, bounds, measure=partial(look, config.alloc_dir), remove=remove)

    period = config.gc_interval_seconds
    await in_rounds("garbage collection of directories", look_once, period=period, first=period)


async def _size(config: Config, alloc_id: str) -> int:
    return await trio.to_thread.run_sync(size, config.alloc_dir / alloc_id)


async def keep_logs(config: Config, clock: Clock) -> None:
    """Remove logs whose time is over, or that take too much, again and again, until cancelled."""

    async def sweep() -> None:
        look = partial(
            kept_logs.sweep,
            config.logs_dir,
            days=config.log_retention_days,
            megabytes=config.log_retention_mb,
            now=clock.now() / SECOND,
        )
        await trio.to_thread.run_sync(look)

    await in_rounds("garbage collection of logs", sweep, period=_LOGS_LOOKED_AT, first=0)


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
