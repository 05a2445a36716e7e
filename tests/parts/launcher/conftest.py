"""Fixtures of the launcher tests: the channel to a launcher, as a compromised daemon uses it."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.launcher.channel import LONGEST, close, receive, sealed, send
from daemon.launcher.messages import (
    VERSION,
    Hello,
    LauncherPolicy,
    NumberedReply,
    ProgramCommand,
    TaskCommand,
)
from tests import launchers

ALLOCATION = "0b8a1c52-1c7e-4b6e-8f43-0123456789ab"


class Talk:
    """A conversation with a launcher, message by message."""

    def __init__(self, server: socket.socket | None = None) -> None:
        self.channel = launchers.begin(server)

    def send(self, *fields: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message of these fields."""
        send(self.channel, msgspec.msgpack.encode(fields), descriptors)

    def ask(self, body: Any, *descriptors: int, number: int = 1) -> NumberedReply:
        """Return the answer to a request; descriptors that come with it are closed."""
        self.send(number, len(descriptors), body, descriptors=descriptors)
        data, received = receive(self.channel)
        close(received)
        return msgspec.msgpack.decode(data, type=NumberedReply)

    def greet(
        self, directory: Path, policy: LauncherPolicy = launchers.EVERYTHING
    ) -> NumberedReply:
        descriptor = policed(policy)
        answer = self.ask(Hello(version=VERSION, directory=str(directory)), descriptor)
        close([descriptor])
        return answer

    def has_ended(self) -> bool:
        """Wait for the launcher's next message; return whether the launcher has closed its end."""
        try:
            return self.channel.recv(LONGEST) == b""
        except ConnectionResetError:  # the launcher closed the channel with unread messages
            return True


@pytest.fixture
def talk() -> Iterator[Talk]:
    """A launcher without a policy."""
    opened = Talk()
    with opened.channel:
        yield opened


@pytest.fixture
def greeted(talk: Talk, tmp_path: Path) -> Talk:
    """A launcher that serves a directory."""
    talk.greet(tmp_path)
    return talk


class Place:
    """An allocation below a directory, with its claims and logs."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / ALLOCATION
        self.logs = self.root / "alloc/logs"
        self.logs.mkdir(parents=True)
        (self.root / "main").mkdir()
        self.claim, self.out, self.err = (
            self.root / ".claim.main.0",
            self.logs / "main.stdout.0",
            self.logs / "main.stderr.0",
        )

    @property
    def is_untouched(self) -> bool:
        """Return whether no task was started: there is neither a claim nor a log."""
        return not any(self.logs.iterdir()) and len([*self.root.iterdir()]) == 2


def policed(policy: LauncherPolicy = launchers.EVERYTHING) -> int:
    """Return a descriptor of a sealed file with the policy."""
    return sealed(msgspec.msgpack.encode(policy))


def ordered(*words: str, **changed: Any) -> TaskCommand:
    """Return the description of a program, for `raw_exec` by default."""
    plain = TaskCommand(
        driver="raw_exec",
        user="",
        command=os.fsencode(words[0]),
        args=[*map(os.fsencode, words[1:])],
        work_dir="",
        env={},
        personal=[],
        volumes=[],
        network="host",
        dns=None,
        filter="default",
        entries=[],
        data=0,
    )
    return msgspec.structs.replace(plain, **changed)


def payload(*words: str, **env: str) -> int:
    """Return a descriptor of a sealed file with a command."""
    return passed(
        ordered(*words, env={os.fsencode(one): os.fsencode(value) for one, value in env.items()})
    )


def passed(order: TaskCommand) -> int:
    """Return a descriptor of a sealed file with the description of a task's command."""
    return sealed(msgspec.msgpack.encode(order))


def asked(program: str, *words: str, **changed: Any) -> int:
    """Return a descriptor of a sealed file with the description of a cluster program's command."""
    plain = ProgramCommand(program=program, user="", args=[*words])
    return sealed(msgspec.msgpack.encode(msgspec.structs.replace(plain, **changed)))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
