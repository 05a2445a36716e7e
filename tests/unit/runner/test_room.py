"""Directories of ended allocations: which go, and when."""

from pathlib import Path

import pytest
import trio

from daemon.config import Config
from daemon.runner.room import Bounds, Use, keep_room, look, make_room, reason

BOUNDS = Bounds(allocations=3, disk_percent=90, inode_percent=80)
EMPTY = Use(disk=0, inodes=0)


@pytest.mark.parametrize(
    ("kept", "use", "why"),
    [
        (0, EMPTY, ""),
        (3, Use(disk=90, inodes=80), ""),
        (4, EMPTY, "4 are kept, more than 3"),
        (1, Use(disk=97.4, inodes=0), "the disk is full to 97 %, more than 90 %"),
        (1, Use(disk=0, inodes=81), "81 % of the inodes are in use, more than 80 %"),
    ],
)
def test_what_is_too_much_is_said(kept: int, use: Use, why: str) -> None:
    assert reason(kept, use, BOUNDS) == why


def test_a_file_system_is_full_to_some_degree(tmp_path: Path) -> None:
    use = look(tmp_path)
    assert 0 < use.disk <= 100
    assert 0 <= use.inodes <= 100


class Place:
    """A file system that gets emptier by each directory that is removed."""

    def __init__(self, disk: float) -> None:
        self.disk = disk
        self.removed: list[str] = []

    def measure(self) -> Use:
        return Use(disk=self.disk, inodes=0)

    async def remove(self, alloc_id: str) -> None:
        self.removed.append(alloc_id)
        self.disk -= 2


@pytest.mark.parametrize(
    ("count", "disk", "removed"),
    [(3, 50, []), (5, 50, ["0", "1"]), (3, 93, ["0", "1"]), (2, 99, ["0", "1"]), (0, 99, [])],
)
async def test_the_oldest_go_until_there_is_room(
    count: int, disk: float, removed: list[str]
) -> None:
    place = Place(disk)
    ended = [str(number) for number in range(count)]
    await make_room(ended, BOUNDS, measure=place.measure, remove=place.remove)
    assert place.removed == removed


async def test_a_removal_is_told_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "steward.runner")
    place = Place(91)
    await make_room(["a1"], BOUNDS, measure=place.measure, remove=place.remove)
    assert caplog.messages == [
        "the files of allocation a1, which has ended, are removed: "
        "the disk is full to 91 %, more than 90 %"
    ]


async def test_a_disk_of_which_nothing_is_known_loses_nothing() -> None:
    place = Place(99)

    def fail() -> Use:
        raise OSError(5, "Input/output error")

    await make_room(["a1"], BOUNDS, measure=fail, remove=place.remove)
    assert place.removed == []


async def test_it_is_looked_at_from_time_to_time(autojump_clock: trio.abc.Clock) -> None:
    looks = []

    async def ended() -> list[str]:
        looks.append(trio.current_time())
        return []

    with trio.move_on_after(35):
        await keep_room(Config(gc_interval_seconds=10), ended, Place(0).remove)
    assert looks == [10, 20, 30]
