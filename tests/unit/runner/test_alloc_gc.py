"""Directories of ended allocations: the conditions and the order of their removal."""

import errno
import os
from pathlib import Path

import pytest
import trio

from daemon.config.settings import Settings
from daemon.launcher.messages import DirectoryUsage
from daemon.runner.alloc import disk_usage
from daemon.runner.alloc.alloc_gc import (
    FilesystemUsage,
    RetentionBounds,
    enforce_retention,
    excess_dirs,
    filesystem_usage,
    free_disk_space,
    gc_reason,
)


async def nothing(_: str) -> DirectoryUsage:
    return DirectoryUsage(used=0, written=0)


BOUNDS = RetentionBounds(allocations=3, disk_percent=90, inode_percent=80)
EMPTY = FilesystemUsage(disk=0, inodes=0)


@pytest.mark.parametrize(
    ("kept", "use", "why"),
    [
        (0, EMPTY, ""),
        (3, FilesystemUsage(disk=90, inodes=80), ""),
        (4, EMPTY, "4 terminal allocations have a directory, more than 3"),
        (1, FilesystemUsage(disk=97.4, inodes=0), "the disk usage is 97 %, more than 90 %"),
        (1, FilesystemUsage(disk=0, inodes=81), "81 % of the inodes are in use, more than 80 %"),
    ],
)
def test_gc_reason_names_the_exceeded_limit(kept: int, use: FilesystemUsage, why: str) -> None:
    assert gc_reason(kept, use, BOUNDS) == why


def test_file_system_has_a_usage_percentage(tmp_path: Path) -> None:
    use = filesystem_usage(tmp_path)
    assert 0 < use.disk <= 100
    assert 0 <= use.inodes <= 100


class Place:
    """A file system whose usage drops by 2 % for each removed directory."""

    def __init__(self, disk: float) -> None:
        self.disk = disk
        self.removed: list[str] = []

    def measure(self) -> FilesystemUsage:
        return FilesystemUsage(disk=self.disk, inodes=0)

    async def remove(self, alloc_id: str) -> None:
        self.removed.append(alloc_id)
        self.disk -= 2


@pytest.mark.parametrize(
    ("count", "disk", "removed"),
    [(3, 50, []), (5, 50, ["0", "1"]), (3, 93, ["0", "1"]), (2, 99, ["0", "1"]), (0, 99, [])],
)
async def test_oldest_directories_are_removed_until_enough_space_is_free(
    count: int, disk: float, removed: list[str]
) -> None:
    place = Place(disk)
    ended = [str(number) for number in range(count)]
    await free_disk_space(ended, BOUNDS, measure=place.measure, remove=place.remove)
    assert place.removed == removed


async def test_a_removal_is_reported_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "steward.runner")
    place = Place(91)
    await free_disk_space(["a1"], BOUNDS, measure=place.measure, remove=place.remove)
    assert caplog.messages == [
        "removing the files of terminal allocation a1: the disk usage is 91 %, more than 90 %"
    ]


async def test_unmeasured_disk_loses_no_directory() -> None:
    place = Place(99)

    def fail() -> FilesystemUsage:
        raise OSError(5, "Input/output error")

    await free_disk_space(["a1"], BOUNDS, measure=fail, remove=place.remove)
    assert place.removed == []


A, B = ("default", "a"), ("default", "b")


@pytest.mark.parametrize(
    ("sizes", "gone"),
    [
        ([4, 4, 2], []),
        ([4, 4, 3], ["0"]),
        ([4, 9, 3], ["0", "1"]),
        ([1, 1, 11], ["0", "1"]),  # the newest stays, regardless of its size
    ],
)
def test_oldest_directories_of_a_job_are_removed_until_the_job_is_within_its_limit(
    sizes: list[int], gone: list[str]
) -> None:
    ended = [str(number) for number in range(len(sizes))]
    by_id = dict(zip(ended, sizes, strict=True))
    assert excess_dirs(ended, dict.fromkeys(ended, A), by_id, most=10) == gone


def test_directories_of_other_jobs_are_not_counted() -> None:
    owners = {"0": A, "1": B, "2": A, "3": B}
    assert excess_dirs("0123", owners, dict.fromkeys("0123", 6), most=12) == []


def test_directories_unknown_to_the_store_are_not_removed() -> None:
    assert excess_dirs("0123", {"3": A}, dict.fromkeys("0123", 6), most=1) == []


async def test_number_of_allocations_of_a_job_is_limited(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    config = Settings(data_dir=tmp_path, gc_interval_seconds=10, retention_alloc_mb=1)
    place, owners, looked = Place(0), dict.fromkeys("abc", A), trio.Event()

    async def ended() -> list[str]:
        left = [name for name in "abc" if name not in place.removed]
        if len(left) < 3:
            looked.set()  # the GC has looked again
        return left

    async def owned(_: object) -> dict[str, tuple[str, str]]:
        return owners

    async def measure(_: str) -> DirectoryUsage:
        return DirectoryUsage(used=600_000, written=0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(enforce_retention, config, ended, owned, place.remove, measure)
        await looked.wait()
        nursery.cancel_scope.cancel()
    assert place.removed == ["a", "b"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EIO])
async def test_failed_round_is_followed_by_the_next(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    looks = []

    async def ended() -> list[str]:
        looks.append(trio.current_time())
        raise OSError(number, os.strerror(number))

    async def owners(_: object) -> dict[str, tuple[str, str]]:
        return {}

    with trio.move_on_after(25):
        await enforce_retention(
            Settings(gc_interval_seconds=10), ended, owners, Place(0).remove, nothing
        )
    assert looks == [10, 20]
    assert [os.strerror(number) in record.getMessage() for record in caplog.records] == [True, True]


async def test_disk_checks_continue_after_a_failure(
    autojump_clock: trio.abc.Clock,
) -> None:
    looks = []

    def tenants() -> list[disk_usage.MeasuredAllocation]:
        looks.append(trio.current_time())
        raise OSError(errno.EMFILE, "Too many open files")

    with trio.move_on_after(25):
        await disk_usage.watch(tenants, nothing, 10)
    assert looks == [10, 20]


async def test_disk_usage_is_checked_periodically(autojump_clock: trio.abc.Clock) -> None:
    looks = []

    async def ended() -> list[str]:
        looks.append(trio.current_time())
        return []

    async def owners(_: object) -> dict[str, tuple[str, str]]:
        return {}

    with trio.move_on_after(35):
        await enforce_retention(
            Settings(gc_interval_seconds=10), ended, owners, Place(0).remove, nothing
        )
    assert looks == [10, 20, 30]
