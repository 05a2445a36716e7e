"""The start of a program of a cluster or of a notification command by the launcher."""

import os
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from daemon.launcher import programs
from daemon.launcher.channel import Refusal
from daemon.launcher.messages import ProgramCommand
from daemon.launcher.task_start import ends
from daemon.launcher.user_policy import User, UserPolicy
from tests.launchers import EVERYTHING
from tests.unit.runner.test_sandbox_arguments import TOOLS

USER = User(name="somebody", uid=1234, gid=1234, groups=(), home="/")


def test_no_program_starts_if_its_user_cannot_be_changed() -> None:
    policy = msgspec.structs.replace(EVERYTHING, commands={"beep": ["/bin/true"]})
    command = ProgramCommand(program="notify", user="", args=["beep"])
    tools = msgspec.structs.replace(TOOLS, setpriv="")
    users = UserPolicy(policy)
    with (
        open(os.devnull) as payload,
        pytest.raises(Refusal, match="the program setpriv is missing"),
    ):
        programs.start(policy, tools, users, command, [payload.fileno()], is_terminal=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a terminal to another user")
@pytest.mark.parametrize(("user", "owner"), [(USER, USER.uid), (None, os.geteuid())])
def test_terminal_belongs_to_the_user_of_the_program(user: User | None, owner: int) -> None:
    with ExitStack() as stack:
        _, (opened, *_) = ends(user, stack, is_terminal=True)
        assert Path(str(opened[2])).stat().st_uid == owner
