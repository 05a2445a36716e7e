"""Directories as archives: the same content has the same digest, and special files are refused."""

import os
import tarfile
from pathlib import Path

import pytest

from daemon.cli.core.directories import packed, with_artifacts
from storage.errors import Invalid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "inner").mkdir(parents=True)
    (made / "b").write_text("B")
    (made / "inner/a").write_text("A")
    return made


def name_of(folder: Path) -> str:
    with packed([str(folder)]) as (one,):
        return one.file


def test_archive_depends_on_content_and_execute_bit_only(folder: Path) -> None:
    first = name_of(folder)
    assert first.startswith("data-")
    os.utime(folder / "b", (1, 1))
    (folder / "b").chmod(0o600)
    assert name_of(folder) == first
    (folder / "b").chmod(0o700)
    program = name_of(folder)
    (folder / "b").write_text("C")
    assert len({first, program, name_of(folder)}) == 3


def test_entries_are_sorted_below_the_name_of_the_directory(folder: Path) -> None:
    with packed([f"{folder}/"]) as (one,), tarfile.open(one.path) as archive:
        found = [(entry.name, entry.mode, entry.mtime) for entry in archive]
        path = one.path
    assert found == [
        ("data/b", 0o444, 0),
        ("data/inner", 0o755, 0),
        ("data/inner/a", 0o444, 0),
    ]
    assert not path.exists()


def test_link_is_refused(folder: Path) -> None:
    (folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(Invalid, match="link is a link: copy its content"), packed([str(folder)]):
        pass


def test_pipe_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(Invalid, match="not a regular file"), packed([str(folder)]):
        pass


def test_missing_directory_and_equal_names_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot read"), packed([f"{tmp_path}/none"]):
        pass
    (tmp_path / "other/data").mkdir(parents=True)
    both = [str(folder), f"{tmp_path}/other/data"]
    with pytest.raises(Invalid, match="two directories 'data'"), packed(both):
        pass
    with pytest.raises(Invalid, match="must have at most 40 letters"), packed(["/"]):
        pass


def test_each_task_gets_the_artifact(folder: Path) -> None:
    job = {"id": "x", "taskgroups": [{"tasks": [{}, {"Artifacts": [{"GetterSource": "y"}]}]}]}
    with packed([str(folder)]) as found:
        made = with_artifacts(job, found)
    ours = {
        "GetterSource": f"payload://{found[0].file}",
        "GetterOptions": {"readonly": "true"},
        "RelativeDest": "local/",
    }
    tasks = [{"Artifacts": [ours]}, {"Artifacts": [{"GetterSource": "y"}, ours]}]
    assert made == {"id": "x", "taskgroups": [{"tasks": tasks}]}
