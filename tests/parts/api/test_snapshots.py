"""Snapshots over HTTP on a disk without space."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.api.cluster.snapshot import _packed
from storage.errors import StorageFull
from storage.snapshot import partial_files
from storage.store import FILE_NAME, open_store
from tests.samples import NOW


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Path]:
    """A directory on a small file system."""
    place = tmp_path / "narrow"
    place.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(line, capture_output=True).returncode:
        pytest.skip("only root can mount a file system that is full")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def leave(place: Path, free: int) -> None:
    """Fill a file system except for this number of bytes."""
    state = os.statvfs(place)
    with (place / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, state.f_bavail * state.f_frsize - free)


@pytest.mark.parametrize("copies", [0, 0.5, 1], ids=["nothing", "half a copy", "a copy"])
async def test_snapshot_on_a_full_disk_is_refused_and_leaves_no_file(
    narrow: Path, copies: float
) -> None:
    async with open_store(narrow, cluster_id="cluster", now=NOW):
        partial_files(narrow)
        leave(narrow, int(copies * (narrow / FILE_NAME).stat().st_size))
        with pytest.raises(StorageFull, match="is full"):
            _packed(narrow, "name")
        assert not list(partial_files(narrow).iterdir())
        (narrow / "filler").unlink()
        _packed(narrow, "name")[0].close()
