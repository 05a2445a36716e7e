"""Garbage collection of the directories of terminal allocations, oldest first.

Directories are kept for inspection until a limit is exceeded: their number, their total size per
job, or the usage of the file system. Directories of running allocations are never removed. The
records of terminal allocations stay in the store; only their files and logs are removed.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import trio

from daemon.clock import Clock
from daemon.config.settings import Settings
from daemon.launcher.client import Launcher
from daemon.launcher.messages import DirectoryUsage
from daemon.runner.logs import retained_logs
from daemon.runner.logs.alloc_files import is_there
from daemon.runner.setup.given_secrets import SecretKeeper
from storage.records.base import SECOND

_LOGS_LOOKED_AT = 600  # seconds between two sweeps over all retained logs

_log = logging.getLogger("steward.runner")
Key = tuple[str, str]  # namespace and ID of a job
_MB = 1_000_000


class RetentionBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the number of directories of terminal allocations, and on file system usage."""

    allocations: int
    disk_percent: int
    inode_percent: int


class FilesystemUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a file system in percent, computed like `df`."""

    disk: float
    inodes: float


def filesystem_usage(path: Path) -> FilesystemUsage:
    """Return the usage of the file system of a directory. Raises `OSError`."""
    facts = os.statvfs(path)
    return FilesystemUsage(
        disk=_percent(facts.f_blocks - facts.f_bfree, facts.f_bavail),
        inodes=_percent(facts.f_files - facts.f_ffree, facts.f_favail),
    )


def _percent(used: int, free: int) -> float:
    return 100 * used / (used + free) if used + free else 0.0


def gc_reason(kept_count: int, use: FilesystemUsage, limits: RetentionBounds) -> str:
    """Return a description of the exceeded limit; empty if no limit is exceeded.

    >>> use = FilesystemUsage(disk=91.5, inodes=0)
    >>> gc_reason(3, use, RetentionBounds(allocations=9, disk_percent=90, inode_percent=90))
    'the disk usage is 92 %, more than 90 %'
    """
    if kept_count > limits.allocations:
        return f"{kept_count} terminal allocations have a directory, more than {limits.allocations}"
    if use.disk > limits.disk_percent:
        return f"the disk usage is {use.disk:.0f} %, more than {limits.disk_percent} %"
    if use.inodes > limits.inode_percent:
        return f"{use.inodes:.0f} % of the inodes are in use, more than {limits.inode_percent} %"
    return ""


def excess_dirs(
    ended: Sequence[str], owners: Mapping[str, Key], sizes: Mapping[str, int], most: int
) -> list[str]:
    """Return the allocations to remove, oldest first, from jobs that use more than `most` bytes.

    `ended` is sorted, oldest first. The newest allocation of each job stays, regardless of its
    size.

    >>> owners = dict.fromkeys("abc", ("default", "web"))
    >>> excess_dirs("abc", owners, {"a": 5, "b": 5, "c": 5}, most=10)
    ['a']
    """
    sizes_by_owner: dict[Key, int] = {}
    excess = []
    for alloc_id in reversed(ended):
        if (owner := owners.get(alloc_id)) is None:
            continue
        is_newest = owner not in sizes_by_owner
        sizes_by_owner[owner] = sizes_by_owner.get(owner, 0) + sizes[alloc_id]
        if sizes_by_owner[owner] > most and not is_newest:
            excess.append(alloc_id)
    return excess[::-1]


async def in_rounds(
    name: str, work: Callable[[], Awaitable[None]], *, period: float, first: float
) -> None:
    """Call `work` after `first` seconds and then every `period` seconds, until cancelled.

    After an `OSError`, log the error and continue with the next round.
    """
    await trio.sleep(first)
    while True:
        try:
            await work()
        except OSError as error:
            _log.warning("%s failed, next run in %g s: %s", name, period, error)
        await trio.sleep(period)


async def enforce_retention(
    config: Settings,
    ended: Callable[[], Awaitable[Sequence[str]]],
    owners: Callable[[Sequence[str]], Awaitable[Mapping[str, Key]]],
    remove: Callable[[str], Awaitable[None]],
    measure: Callable[[str], Awaitable[DirectoryUsage]],
) -> None:
    """Enforce the limits on terminal allocations periodically, until cancelled.

    `ended` returns the terminal allocations that have a directory, oldest first. `owners` returns
    the job of each allocation, as its namespace and ID. `remove` removes the files of an
    allocation, and `measure` returns their disk usage.
    """
    sizes: dict[str, int] = {}  # cached, because terminal allocations do not grow
    bounds = RetentionBounds(
        allocations=config.gc_max_allocs,
        disk_percent=config.gc_disk_usage_threshold,
        inode_percent=config.gc_inode_usage_threshold,
    )

    async def look_once() -> None:
        nonlocal sizes
        alloc_ids = await ended()
        if most := config.retention_alloc_mb * _MB:
            sizes = {
                ended_id: sizes.get(ended_id) or await _taken(ended_id, measure)
                for ended_id in alloc_ids
            }
            removed = excess_dirs(alloc_ids, await owners(alloc_ids), sizes, most)
            for alloc_id in removed:
                _log.info(
                    "removing the files of terminal allocation %s: the files of its job"
                    " exceed %d MB",
                    *(alloc_id, config.retention_alloc_mb),
                )
                await remove(alloc_id)
            alloc_ids = [ended_id for ended_id in alloc_ids if ended_id not in set(removed)]
        await free_disk_space(
            alloc_ids, bounds, measure=partial(filesystem_usage, config.alloc_dir), remove=remove
        )

    period = config.gc_interval_seconds
    await in_rounds("garbage collection of directories", look_once, period=period, first=period)


async def _taken(alloc_id: str, measure: Callable[[str], Awaitable[DirectoryUsage]]) -> int:
    try:
        return (await measure(alloc_id)).used
    except FileNotFoundError:  # removed in the meantime
        return 0


async def retain_logs(
    config: Settings, clock: Clock, launcher: Launcher, secrets: SecretKeeper | None
) -> None:
    """Enforce the retention and the total size of logs periodically, until cancelled.

    The stored secrets of an allocation are deleted with its logs.
    """

    async def sweep() -> None:
        await retained_logs.delete_expired(
            launcher,
            days=config.log_retention_days,
            megabytes=config.log_retention_mb,
            now=clock.now() / SECOND,
        )
        await retained_logs.tidy(launcher, config.output_dir)
        if secrets is not None:
            await secrets.tidy(partial(is_there, launcher))

    await in_rounds("garbage collection of logs", sweep, period=_LOGS_LOOKED_AT, first=0)


async def free_disk_space(
    ended: Sequence[str],
    limits: RetentionBounds,
    *,
    measure: Callable[[], FilesystemUsage],
    remove: Callable[[str], Awaitable[None]],
) -> None:
    """Remove directories of terminal allocations, oldest first, until no limit is exceeded."""
    for number, alloc_id in enumerate(ended):
        try:
            use = await trio.to_thread.run_sync(measure)
        except OSError as error:
            _log.warning("cannot read the disk usage: %s", error)
            return
        if not (why := gc_reason(len(ended) - number, use, limits)):
            return
        _log.info("removing the files of terminal allocation %s: %s", alloc_id, why)
        await remove(alloc_id)
