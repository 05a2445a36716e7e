"""Snapshots that the daemon saves by itself while it works, and how many of them it keeps.

A snapshot gets its name once it is whole and has been read back; of those that are kept the names
say when they were made, so a restart goes on where the last run was.
"""

import logging
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import trio

from daemon.clock import Clock
from daemon.config import Config
from storage.errors import StewardError
from storage.records.base import HOUR, SECOND
from storage.snapshot import discard_unfinished, inspect, save, unfinished

log = logging.getLogger("steward.backups")

_NAME = re.compile(r"steward-(\d{8}T\d{6})Z\.snap")
_FORM = "%Y%m%dT%H%M%S"
_LOOK_AGAIN = HOUR  # at the latest, for clocks are set
_AFTER_A_FAILURE = 600.0  # seconds


def name_of(now: int) -> str:
    """Return the name of a snapshot that is made now."""
    return f"steward-{datetime.fromtimestamp(now // SECOND, UTC).strftime(_FORM)}Z.snap"


def made_at(name: str) -> int | None:
    """Return when the snapshot of this name was made; None for a file that is none of ours."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return int(datetime.strptime(f"{match[1]}+0000", f"{_FORM}%z").timestamp()) * SECOND


def wait(names: Iterable[str], *, every: int, now: int) -> int:
    """Return how long, in nanoseconds, the next snapshot has time; at most an hour."""
    made = [at for name in names if (at := made_at(name)) is not None and at <= now]
    return min(max(max(made) + every - now, 0), _LOOK_AGAIN) if made else 0


def superfluous(names: Iterable[str], keep: int, *, latest: str) -> list[str]:
    """Return the snapshots that need not stay: the `keep` newest do, and above all the `latest`.

    That one was made just now, whatever its name says: the clock may have been set back.
    """
    ours = (name for name in names if made_at(name) is not None)
    return sorted(ours, key=lambda name: (name == latest, name))[:-keep]


def back_up(source: Path, target: Path, *, keep: int, now: int) -> Path:
    """Save a snapshot of the store in `source`, read it back, and remove what need not be kept.

    Raises `StewardError` or `OSError`; then there are the snapshots that there were.
    """
    file = target / name_of(now)
    draft = unfinished(target) / file.name
    draft.unlink(missing_ok=True)
    try:
        save(source, draft)
        inspect(draft)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    for name in superfluous(_names(target), keep, latest=file.name):
        (target / name).unlink()
    return file


def _names(directory: Path) -> list[str]:
    """Return what is in a directory, which is made if it is not there. Raises `OSError`."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return [one.name for one in directory.iterdir()]


@asynccontextmanager
async def open_backups(config: Config, clock: Clock) -> AsyncIterator[None]:
    """Save snapshots while the block runs, as often as is configured; perhaps never.

    Where none can be saved the log says so; all else goes on, and it is tried again.
    """
    if not config.snapshot_hours:
        yield
        return
    target = config.snapshots_dir
    discard_unfinished(target)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_save_regularly, config, target, clock)
        yield
        nursery.cancel_scope.cancel()


async def _save_regularly(config: Config, target: Path, clock: Clock) -> None:
    while True:
        try:
            if pause := wait(_names(target), every=config.snapshot_hours * HOUR, now=clock.now()):
                await trio.sleep(pause / SECOND)
                continue
            file = await trio.to_thread.run_sync(
                lambda: back_up(
                    config.store_dir, target, keep=config.snapshot_keep, now=clock.now()
                ),
                abandon_on_cancel=True,  # the next start discards what is unfinished
            )
            log.info("saved %s", file)
        except (StewardError, OSError) as error:
            log.error("no snapshot could be saved: %s", error)  # noqa: TRY400  # no defect of ours
            await trio.sleep(_AFTER_A_FAILURE)
