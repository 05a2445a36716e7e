"""How much disk an allocation takes."""

import os
from pathlib import Path

import trio

from daemon.runner.disk import Measuring, look, measure

BLOCK = 4096


def measured(root: Path, most: int = 2000) -> int:
    measuring = Measuring(str(root))
    while not measuring.step(most):
        pass
    return measuring.used


def fill(path: Path, blocks: int) -> int:
    """Write a file; return how many bytes it takes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * (blocks * BLOCK))
    return path.stat().st_blocks * 512


def test_everything_below_counts_whatever_the_size_of_a_step(tmp_path: Path) -> None:
    files = sum(fill(tmp_path / f"d{number}/e/f", number) for number in range(4))
    folders = sum(one.stat().st_blocks * 512 for one in tmp_path.rglob("*") if one.is_dir())
    assert measured(tmp_path) == files + folders
    assert measured(tmp_path, most=1) == files + folders


def test_holes_other_names_and_links_take_nothing(tmp_path: Path) -> None:
    there = fill(tmp_path / "a", 2)
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").symlink_to("/usr")
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 30)
    assert measured(tmp_path) == there


def test_what_is_mounted_from_elsewhere_is_not_counted(tmp_path: Path) -> None:
    fill(tmp_path / "a/f", 2)
    measuring = Measuring(str(tmp_path))
    measuring._device = -1  # as if all below was of another file system
    while not measuring.step():
        pass
    assert measuring.used == 0


def test_a_directory_that_becomes_a_link_during_a_look_leads_nowhere(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere/f", 100)
    fill(tmp_path / "root/a/f", 1)
    measuring = Measuring(str(tmp_path / "root"))
    measuring.step(1)  # the directory is known, and not yet looked into
    (tmp_path / "root/a").rename(tmp_path / "root/b")
    (tmp_path / "root/a").symlink_to(tmp_path / "elsewhere")
    while not measuring.step():
        pass
    assert measuring.used == (tmp_path / "root/b").stat().st_blocks * 512


def test_what_is_not_there_takes_nothing(tmp_path: Path) -> None:
    assert measured(tmp_path / "none") == 0


class Tenant:
    def __init__(self, directory: Path, disk: int) -> None:
        self.directory, self.disk = str(directory), disk
        self.told: list[int] = []

    async def take_less(self, used: int) -> None:
        self.told.append(used)


async def test_who_takes_more_than_it_may_is_told(tmp_path: Path, autojump_clock: object) -> None:
    tenants = [Tenant(tmp_path / str(disk), disk) for disk in (0, 4 * BLOCK, 1)]
    for one in tenants:
        await trio.to_thread.run_sync(fill, Path(one.directory) / "f", 2)
    await look(tenants)
    used = await measure(tenants[2].directory)
    assert [one.told for one in tenants] == [[], [], [used]]
