"""The mount over all task directories: created once, with earlier mounts below it, and removed."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.runner import nosuid_mount
from daemon.runner.nosuid_mount import cover, mounts, unmount
from tests.parts.runner.conftest import needs_root
from tests.parts.runner.test_secret_dirs import may_mount

SECRETS = "alloc/one/main/secrets"


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Path]:
    """The directory of all tasks, including a task with secrets in memory."""
    if not may_mount(tmp_path):
        pytest.skip("this host permits no mounts")
    place = tmp_path / "ta sks"
    (place / SECRETS).mkdir(parents=True)
    yield place
    for mount in reversed([*mounts()]):
        if f"{mount.place}/".startswith(f"{place}/"):
            subprocess.run(["umount", "-l", mount.place], check=True)


def options(place: Path) -> list[list[str]]:
    return [sorted(mount.options) for mount in mounts() if mount.place == str(place)]


@needs_root
def test_set_user_id_files_and_devices_have_no_effect_below_the_mount(tasks: Path) -> None:
    assert cover(tasks) == ""
    [found] = options(tasks)
    assert {"nosuid", "nodev", "rw"} <= {*found}
    assert cover(tasks) == ""
    assert options(tasks) == [found]
    unmount(tasks)
    assert options(tasks) == []
    unmount(tasks)


@needs_root
def test_existing_secrets_mounts_are_detected_and_unmounted_once(tasks: Path) -> None:
    secrets = tasks / SECRETS
    subprocess.run(["mount", "-t", "tmpfs", "steward", secrets], check=True)
    (secrets / "f").write_text("hidden")
    assert cover(tasks) == ""
    assert (secrets / "f").read_text() == "hidden"
    subprocess.run(["umount", "-l", secrets], check=True)
    assert options(secrets) == []
    secrets.rmdir()  # works only if nothing is mounted on it, not even a hidden mount


@needs_root
def test_mount_options_missing_after_a_kill_are_set_by_the_next_daemon(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = nosuid_mount.called

    def refuse(name: str, *given: object) -> None:
        if name == "mount" and "none" in map(_text, given):
            raise OSError(errno.EPERM, "Operation not permitted")
        real(name, *given)

    with monkeypatch.context() as patch:
        patch.setattr(nosuid_mount, "called", refuse)
        assert cover(tasks) == "Operation not permitted"
    [found] = options(tasks)
    assert "nosuid" not in found
    assert cover(tasks) == ""
    [found] = options(tasks)
    assert "nosuid" in found


@needs_root
def test_options_of_the_file_system_are_preserved(tasks: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,noatime", "big", tasks], check=True)
    assert cover(tasks) == ""
    assert {"nosuid", "nodev", "noexec", "noatime"} <= {*options(tasks)[-1]}


def test_forbidden_mounts_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(nosuid_mount, "called", refuse)
    is_root = os.geteuid() == 0
    assert cover(tmp_path) == ("Operation not permitted" if is_root else "the daemon is not root")


def _text(given: object) -> str:
    return given.decode() if isinstance(given, bytes) else ""
