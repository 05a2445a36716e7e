"""Logs that outlive their allocation: put aside when its directory goes, and kept for a time of their own.

    <logs>/<allocation>/alloc/logs     what its tasks have printed, as it lay in its own directory
    <logs>/<allocation>/.logs          what was moved out of a log
    <logs>/<allocation>/.about         whose they are

So they are read as if they still lay there. An allocation of which the store knows nothing any more
is described by what was written beside its logs when it began.
"""

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from daemon.launcher.directories import ABOUT
from daemon.runner.beneath import below
from daemon.runner.taskdir import MOVED, SHARED, remove_tree
from storage.records.task import LogConfig

_LOGS = f"{SHARED}/logs"
_BLOCK = 512  # bytes, of `st_blocks`

_log = logging.getLogger("steward.runner")


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Whose logs these are, and how each task keeps its own."""

    namespace: str
    job_id: str
    tasks: dict[str, LogConfig]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Logs that were put aside: what they take, and when something was last written to them."""

    path: Path
    size: int  # bytes
    written: float  # seconds


def about(root: Path) -> About | None:
    """Return whose logs lie in a directory; None when there are none."""
    try:
        return msgspec.json.decode((root / ABOUT).read_bytes(), type=About)
    except (OSError, msgspec.MsgspecError):
        return None


def directory_of(alloc_dir: Path, logs_dir: Path, alloc_id: str) -> Path:
    """Return the directory in which the logs of an allocation lie, or would."""
    kept = logs_dir / alloc_id
    return kept if os.path.isdir(kept / _LOGS) else alloc_dir / alloc_id


def keep(root: str, kept: Path) -> None:
    """Put the logs of an allocation aside, unless nothing was printed. Raises `OSError`.

    Its directory goes afterwards. What a crash cuts short is done when that is removed anew.
    """
    if not _has_printed(root):
        return
    (kept / SHARED).mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (MOVED, ABOUT, _LOGS):
        if not (kept / name).exists():
            with suppress(FileNotFoundError):
                os.rename(f"{root}/{name}", kept / name)


def _has_printed(root: str) -> bool:
    with suppress(OSError):
        logs = Path(root, _LOGS)
        if stat.S_ISDIR(logs.lstat().st_mode):
            return any(one.lstat().st_size for one in logs.iterdir())
    return False


def sweep(logs_dir: Path, *, days: int, megabytes: int, now: float) -> None:
    """Remove what is older than so many days, and the oldest as long as all take more than they may."""
    kept = sorted(_every(logs_dir), key=lambda one: one.written, reverse=True)
    used = 0
    for one in kept:
        used += one.size
        if one.written < now - days * 86_400 or used > megabytes * 1024 * 1024:
            _log.info("the logs of allocation %s, which is gone, are removed", one.path.name)
            remove_tree(str(one.path))


def _every(logs_dir: Path) -> Iterator[Kept]:
    with suppress(FileNotFoundError):
        for entry in os.scandir(logs_dir):
            size, written = 0, 0.0
            for one in below(entry.path):
                size += one.st_blocks * _BLOCK
                if stat.S_ISREG(one.st_mode):
                    written = max(written, one.st_mtime)
            yield Kept(path=Path(entry.path), size=size, written=written)
