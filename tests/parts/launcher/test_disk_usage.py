"""Contents of a directory, and their size."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daemon.launcher.disk_usage import DiskUsageScan

BLOCK = 4096


@contextmanager
def looking(root: Path) -> Iterator[DiskUsageScan]:
    top = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        yield DiskUsageScan(top)
    finally:
        os.close(top)


def measured(root: Path, most: int = 2000) -> int:
    with looking(root) as measuring:
        while not measuring.step(most):
            pass
        return measuring.used


def fill(path: Path, blocks: int) -> int:
    """Write a file; return how many bytes it takes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * (blocks * BLOCK))
    return path.stat().st_blocks * 512


def test_all_files_are_counted_with_any_step_size(tmp_path: Path) -> None:
    files = sum(fill(tmp_path / f"d{number}/e/f", number) for number in range(4))
    folders = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_dir())
    assert measured(tmp_path) == files + folders
    assert measured(tmp_path, most=1) == files + folders


def test_holes_hard_links_and_symlinks_use_no_space(tmp_path: Path) -> None:
    there = fill(tmp_path / "a", 2)
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").symlink_to("/usr")
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 30)
    assert measured(tmp_path) == there


def test_mounted_file_systems_are_not_counted(tmp_path: Path) -> None:
    fill(tmp_path / "a/f", 2)
    with looking(tmp_path) as measuring:
        measuring._device = -1  # as if all contents were on another file system
        measuring.run()
        assert measuring.used == 0


def test_directory_replaced_by_a_link_during_a_measurement_is_not_followed(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere/f", 100)
    fill(tmp_path / "root/a/f", 1)
    with looking(tmp_path / "root") as measuring:
        measuring.step(1)  # the directory is found, but not yet read
        (tmp_path / "root/a").rename(tmp_path / "root/b")
        (tmp_path / "root/a").symlink_to(tmp_path / "elsewhere")
        measuring.run()
        assert measuring.used == (tmp_path / "root/b").stat().st_blocks * 512


def test_time_of_the_last_written_file_is_reported(tmp_path: Path) -> None:
    for number in (3, 7, 5):
        fill(tmp_path / f"{number}/f", 1)
        os.utime(tmp_path / f"{number}/f", (number, number))
    with looking(tmp_path) as measuring:
        measuring.run()
        assert measuring.written == 7_000_000_000
