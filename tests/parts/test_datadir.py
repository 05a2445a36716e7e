"""The daemon requires a data directory that other users cannot replace."""

import os
from pathlib import Path

import pytest

from daemon.config.data_directory import weak_places
from tests.parts.runner.conftest import needs_root


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    made = tmp_path / "above" / "data"
    made.mkdir(parents=True)
    return made


def test_directories_of_the_daemon_and_of_root_are_safe(data_dir: Path) -> None:
    assert list(weak_places(data_dir)) == []


@pytest.mark.parametrize("place", [".", ".."])
def test_world_writable_directory_is_named(data_dir: Path, place: str) -> None:
    opened = (data_dir / place).resolve()
    opened.chmod(0o777)
    assert list(weak_places(data_dir)) == [
        f"all users can write to {str(opened)!r}: run chmod o-w on it"
    ]


def test_sticky_parent_directory_is_safe(data_dir: Path) -> None:
    data_dir.parent.chmod(0o1777)
    assert list(weak_places(data_dir)) == []
    data_dir.chmod(0o1777)
    assert len(list(weak_places(data_dir))) == 1


@needs_root
def test_a_directory_of_another_user_is_named(data_dir: Path) -> None:
    os.chown(data_dir.parent, 65534, 65534)
    assert list(weak_places(data_dir)) == [
        f"user 65534 owns {str(data_dir.parent)!r}: give it to root, or to the daemon's user"
    ]


def test_link_to_an_unsafe_directory_is_followed(data_dir: Path, tmp_path: Path) -> None:
    data_dir.parent.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(data_dir)
    assert len(list(weak_places(link))) == 1
