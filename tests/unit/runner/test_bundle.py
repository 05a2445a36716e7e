"""The archive of an attempt: its members, and the settings of the wrapper."""

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from daemon.runner.core.driver import Attempt
from daemon.runner.drivers.slurm.bundle import home_of, pack, pack_files
from storage.records.base import SECOND


def attempt(directory: Path, **fields: Any) -> Attempt:
    for name in ("alloc/logs", "main/local", "main/secrets"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    given = {"config": {"command": "x"}, "env": {}, "logs": {}, "beside": f"{directory}/output"}
    return Attempt(
        alloc_id="a1", task="main", number=0, directory=str(directory), **{**given, **fields}
    )


def archived(found: Attempt, *, files_only: bool = False) -> tarfile.TarFile:
    file = io.BytesIO()
    if files_only:
        pack_files(file, found)
    else:
        pack(file, found, home_of("/hosts", found), "s3cret")
    file.seek(0)
    return tarfile.open(fileobj=file)


def text_of(archive: tarfile.TarFile, name: str) -> str:
    member = archive.extractfile(name)
    assert member is not None
    return member.read().decode()


@pytest.mark.parametrize(
    ("longest", "most"), [(0, 0), (60 * SECOND, 65), (3 * SECOND // 2, 6), (SECOND // 2, 5)]
)
def test_wrapper_enforces_the_maximum_run_time_a_little_later(
    tmp_path: Path, longest: int, most: int
) -> None:
    with archived(attempt(tmp_path, longest=longest)) as archive:
        line = text_of(archive, ".steward/settings")
    assert line == f"secret=s3cret logs=1 most={most} outputs=''\n"


def test_task_begins_in_its_directory_with_its_arguments(tmp_path: Path) -> None:
    config = {"command": "a b", "args": ["$x", "y"]}
    with archived(attempt(tmp_path, config=config, env={"A": "it's", "b-c": "1"})) as archive:
        task, session = (text_of(archive, f".steward/{name}") for name in ("task", "session"))
    assert "export A='it'\"'\"'s'\n" in task
    assert "cd -- /hosts/steward-a1-main/main || exit 125\n" in task
    assert "_steward_c='a b'\n" in task
    assert task.rstrip().endswith("\"$_steward_c\" '$x' y")
    assert session.rstrip().endswith('"$@"')
    with archived(attempt(tmp_path, config={"command": "x", "work_dir": "/w"})) as archive:
        assert "cd -- /w || exit 125\n" in text_of(archive, ".steward/task")


def test_archive_has_ordinary_files_without_logs_and_owners(tmp_path: Path) -> None:
    found = attempt(tmp_path, outputs="main/local/outputs")
    for name in ("alloc/logs/main.stdout.0", "alloc/x", "main/local/outputs", "main/secrets/s"):
        (tmp_path / name).write_text(name)
    os.mkfifo(tmp_path / "main/local/pipe")
    (tmp_path / "main/local/link").symlink_to("/etc/passwd")
    with archived(found) as archive:
        assert {name for name in archive.getnames() if not name.startswith(".steward/")} == {
            *("alloc", "alloc/logs", "alloc/x"),
            *("main/local", "main/local/outputs", "main/local/link"),
            *("main/secrets", "main/secrets/s"),
        }
        members = [(one.uid, one.gid, one.uname, one.gname) for one in archive.getmembers()]
        assert set(members) == {(0, 0, "", "")}
        assert archive.getmember(".steward/settings").mode == 0o600
    with archived(found, files_only=True) as archive:
        assert set(archive.getnames()) == {
            *("main/local", "main/local/link", "main/secrets", "main/secrets/s")
        }
