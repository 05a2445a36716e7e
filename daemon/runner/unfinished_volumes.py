"""Deletion of volume directories that an earlier daemon created or deleted incompletely."""

import logging
from collections.abc import Sequence
from functools import partial

from daemon.launcher.client import Launcher
from storage.queries import host_volumes
from storage.store import Store, tolerate_disk_full

_log = logging.getLogger("steward.runner")


async def remove_unfinished(store: Store, launcher: Launcher, volume_ids: Sequence[str]) -> None:
    """Delete volumes with their directories; the next start retries failed deletions."""
    for volume_id in volume_ids:
        try:
            await launcher.remove_volume(volume_id)
        except OSError as error:
            _log.warning("cannot delete the directory of volume %s: %s", volume_id, error)
            continue
        async with tolerate_disk_full(f"cannot complete the deletion of volume {volume_id}"):
            await store.write(partial(host_volumes.forget, volume_id=volume_id))
