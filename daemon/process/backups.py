"""Automatic snapshots of the store, and their retention.

A snapshot gets its final name only after it was written completely and read back. The name holds
the time of the snapshot, so a restarted daemon continues the schedule.
"""

import logging
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trio

from daemon.clock import Clock
from daemon.config.settings import Settings
from daemon.fences import Fences
from storage.errors import StewardError
from storage.records.base import HOUR, SECOND
from storage.snapshot import delete_partial, inspect, partial_files, save

log = logging.getLogger("steward.backups")

_NAME = re.compile(r"steward-(\d{8}T\d{6})Z\.snap")
_FORM = "%Y%m%dT%H%M%S"
_LOOK_AGAIN = HOUR  # longest wait, because the system clock may be changed during a wait
_AFTER_A_FAILURE = 600.0  # seconds


def snapshot_name(now: int) -> str:
    """Return the file name of a snapshot made at `now`, in nanoseconds since the epoch."""
    return f"steward-{datetime.fromtimestamp(now // SECOND, UTC).strftime(_FORM)}Z.snap"


def snapshot_time(name: str) -> int | None:
    """Return the time in a file name; None if it is not the name of an automatic snapshot."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return int(datetime.strptime(f"{match[1]}+0000", f"{_FORM}%z").timestamp()) * SECOND


def wait(names: Iterable[str], *, interval: int, now: int) -> int:
    """Return the time to wait before the next check for a due snapshot; 0 if one is due.

    The time is in nanoseconds, at most one hour. `names` are the file names of the existing
    snapshots.
    """
    times = [time for name in names if (time := snapshot_time(name)) is not None and time <= now]
    return min(max(max(times) + interval - now, 0), _LOOK_AGAIN) if times else 0


def expired_snapshots(names: Iterable[str], keep: int, *, latest: str) -> list[str]:
    """Return the snapshots to delete: all except the newest `keep` snapshots and `latest`.

    `latest` is never deleted. It was made just now, but its name may look old if the system clock
    was set back.
    """
    own_names = (name for name in names if snapshot_time(name) is not None)
    return sorted(own_names, key=lambda name: (name == latest, name))[:-keep]


def save_snapshot(source: Path, target: Path, *, keep: int, now: int) -> Path:
    """Save a snapshot of the store in `source`, verify it, and delete all but `keep` snapshots.

    Raises `StewardError` or `OSError`. The existing snapshots then stay unchanged.
    """
    file = target / snapshot_name(now)
    draft = partial_files(target) / file.name
    draft.unlink(missing_ok=True)
    try:
        save(source, draft)
        inspect(draft)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    for name in expired_snapshots(_names(target), keep, latest=file.name):
        (target / name).unlink()
    return file


def _names(directory: Path) -> list[str]:
    """Return the names of the entries in a directory; create it if needed. Raises `OSError`."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return [path.name for path in directory.iterdir()]


@asynccontextmanager
async def open_backups(
    config: Settings, clock: Clock, fences: Fences | None = None
) -> AsyncIterator[None]:
    """Save snapshots at the configured interval while the block runs.

    Without an interval, no snapshots are saved. A failed snapshot is logged and retried later. The
    failure affects no other part.
    """
    if not config.snapshot_hours:
        yield
        return
    target = config.snapshots_dir
    delete_partial(target)
    async with trio.open_nursery() as nursery:
        saving = partial(_save_regularly, config, target, clock)
        nursery.start_soon((fences or Fences(clock)).keep_running, "snapshots", saving)
        yield
        nursery.cancel_scope.cancel()


async def _save_regularly(config: Settings, target: Path, clock: Clock) -> None:
    while True:
        try:
            if pause := wait(
                _names(target), interval=config.snapshot_hours * HOUR, now=clock.now()
            ):
                await trio.sleep(pause / SECOND)
                continue
            file = await trio.to_thread.run_sync(
                lambda: save_snapshot(
                    config.store_dir, target, keep=config.snapshot_keep, now=clock.now()
                ),
                abandon_on_cancel=True,  # the next start deletes partial files
            )
            log.info("saved %s", file)
        except (StewardError, OSError) as error:
            log.error("cannot save a snapshot: %s", error)  # noqa: TRY400  # not a bug, so no traceback
            await trio.sleep(_AFTER_A_FAILURE)
