"""Retained logs: logs outlive their allocation directory for a configured time.

    <logs>/<allocation>/alloc/logs     the logs, with the paths of the allocation directory
    <logs>/<allocation>/.about         a description of the allocation

Readers use the same paths before and after the removal of the allocation directory. Data that
rotation has moved out of a log is in the daemon's own directory. The `.about` file, written when
the allocation starts, describes allocations that are purged from the store.
"""

import logging
import os
import re
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import trio

from daemon.launcher.alloc_dir import ABOUT
from daemon.launcher.client import Launcher
from daemon.launcher.messages import ID, OpenFile
from daemon.runner.core.opened_files import OpenedFile
from daemon.runner.logs.alloc_files import is_there
from storage.records.base import SECOND
from storage.records.task import LogConfig

_log = logging.getLogger("steward.runner")


class LogManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `.about`: the owner of the logs, and the log settings of each task."""

    namespace: str
    job_id: str
    tasks: dict[str, LogConfig]


async def read_manifest(launcher: Launcher, alloc_id: str) -> LogManifest | None:
    """Return the description of an allocation's logs; None if it is missing or unreadable."""
    try:
        metadata, descriptor = await launcher.open(
            OpenFile(allocation=alloc_id, path=ABOUT, sees_secrets=False)
        )
        if descriptor is None:
            return None
        opened_file = OpenedFile(descriptor)
        content = os.pread(opened_file.descriptor, metadata.size, 0)
        return msgspec.json.decode(content, type=LogManifest)
    except (OSError, msgspec.MsgspecError):
        return None


async def delete_expired(launcher: Launcher, *, days: int, megabytes: int, now: float) -> None:
    """Remove logs older than `days`, and the oldest logs while the total exceeds `megabytes`."""
    manifests = {
        kept_id: await launcher.measure(kept_id, is_kept=True)
        for kept_id in await launcher.present(is_kept=True)
    }
    used = 0
    for alloc_id, manifest in sorted(
        manifests.items(), key=lambda pair: pair[1].written, reverse=True
    ):
        used += manifest.used
        is_old = manifest.written < (now - days * 86_400) * SECOND
        if is_old or used > megabytes * 1024 * 1024:
            _log.info("removing the logs of the deleted allocation %s", alloc_id)
            await launcher.remove(alloc_id, is_kept=True)


async def tidy(launcher: Launcher, output: Path) -> None:
    """Remove rotated data of allocations whose logs no longer exist."""
    with suppress(FileNotFoundError):  # the first rotation creates the directory
        for alloc_id in os.listdir(output):
            if re.fullmatch(ID, alloc_id) and not await is_there(launcher, alloc_id):
                await trio.to_thread.run_sync(partial(shutil.rmtree, output / alloc_id, True))
