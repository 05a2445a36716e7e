"""The program and the user of a task."""

import os
import pwd
from pathlib import Path

import pytest

from daemon.launcher.channel import Refusal
from daemon.launcher.command_lookup import CommandFile, find
from daemon.launcher.user_policy import User, UserPolicy
from daemon.runner.core.driver import StartFailed
from daemon.runner.drivers.permitted_users import ANY_USER
from tests.launchers import EVERYTHING
from tests.parts.runner.conftest import needs_root


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def find_command(command: str, directory: str, path: str | None, user: User | None = None) -> str:
    """Return the program that a task of raw_exec finds for a command in that directory."""
    own = [
        CommandFile(item, item)
        for item in (f"{directory}/local/{command}", f"{directory}/{command}")
    ]
    return find(
        command, own, path, lambda command_file: CommandFile(command_file, command_file), user
    )


def find_user(name: str) -> User | None:
    return UserPolicy(EVERYTHING).find("exec", name)


@pytest.mark.parametrize("place", ["main/local/tool", "main/tool", "bin/tool"])
def test_a_command_is_found_by_its_name(tmp_path: Path, place: str) -> None:
    expected = program(tmp_path / place)
    assert find_command("tool", f"{tmp_path}/main", f"{tmp_path}/bin") == str(expected)


def test_task_directory_precedes_the_search_path(tmp_path: Path) -> None:
    program(tmp_path / "bin/tool")
    own = program(tmp_path / "main/local/tool")
    assert find_command("tool", f"{tmp_path}/main", f"{tmp_path}/bin") == str(own)


@pytest.mark.parametrize("opened", ["main/local", "main/local/tool"])
def test_program_writable_by_others_is_ignored(tmp_path: Path, opened: str) -> None:
    program(tmp_path / "main/local/tool")
    (tmp_path / opened).chmod(0o777)
    found = program(tmp_path / "bin/tool")
    assert find_command("tool", f"{tmp_path}/main", f"{tmp_path}/bin") == str(found)


@needs_root
@pytest.mark.parametrize("planted", ["main/local", "main/local/tool"])
@pytest.mark.parametrize(("owner", "is_trusted"), [(65534, True), (1, False)])
def test_program_must_belong_to_the_task_user_or_root(
    tmp_path: Path, planted: str, owner: int, is_trusted: bool
) -> None:
    own, usual = program(tmp_path / "main/local/tool"), program(tmp_path / "bin/tool")
    os.chown(tmp_path / planted, owner, owner)
    found = find_command("tool", f"{tmp_path}/main", f"{tmp_path}/bin", find_user("65534"))
    assert found == str(own if is_trusted else usual)


def test_absolute_command_is_not_searched(tmp_path: Path) -> None:
    tool = program(tmp_path / "tool")
    assert find_command(str(tool), "/nowhere", None) == str(tool)


@pytest.mark.parametrize("command", ["", "none", "/none", "../none", ".", "a\0b", "/a\0b"])
def test_missing_command_is_named(tmp_path: Path, command: str) -> None:
    with pytest.raises(Refusal, match="could not be found"):
        find_command(command, str(tmp_path), str(tmp_path))


def test_a_file_that_cannot_be_executed_is_ignored_and_then_named(tmp_path: Path) -> None:
    first = program(tmp_path / "main/local/tool")
    first.chmod(0o644)
    second = program(tmp_path / "bin/tool")
    assert find_command("tool", f"{tmp_path}/main", f"{tmp_path}/bin") == str(second)
    second.unlink()
    with pytest.raises(Refusal, match=r"local/tool.* is not executable"):
        find_command("tool", f"{tmp_path}/main", f"{tmp_path}/bin")


def test_user_of_the_daemon_needs_no_change() -> None:
    assert find_user(pwd.getpwuid(os.geteuid()).pw_name) is None
    assert find_user(str(os.geteuid())) is None


def test_an_unknown_user_is_named() -> None:
    with pytest.raises(StartFailed, match='identify user "nosuchuser": user: unknown user'):
        ANY_USER.find("slurm", "nosuchuser")


@needs_root
def test_another_user_is_found_with_groups_and_home() -> None:
    user = find_user("nobody")
    assert user is not None
    assert (user.name, user.uid, user.groups) == ("nobody", 65534, (65534,))
