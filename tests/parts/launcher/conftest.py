"""What the tests of the launcher share: the bare channel to one, as a daemon that was taken over has it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.launcher.channel import LONGEST, close, receive, sealed, send
from daemon.launcher.messages import VERSION, Hello, Payload, Reply
from tests import launchers

ALLOCATION = "0b8a1c52-1c7e-4b6e-8f43-0123456789ab"


class Talk:
    """A conversation with a launcher, message by message."""

    def __init__(self) -> None:
        self.channel = launchers.begin()

    def send(self, *fields: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message of these fields."""
        send(self.channel, msgspec.msgpack.encode(fields), descriptors)

    def ask(self, body: Any, *descriptors: int, number: int = 1) -> Reply:
        """Return the answer to a request; descriptors that come with it are closed."""
        self.send(number, len(descriptors), body, descriptors=descriptors)
        data, received = receive(self.channel)
        close(received)
        return msgspec.msgpack.decode(data, type=Reply)

    def greet(self, directory: Path) -> Reply:
        return self.ask(Hello(version=VERSION, directory=str(directory)))

    def has_ended(self) -> bool:
        """Return whether the launcher has closed its end; waits for what it says next."""
        try:
            return self.channel.recv(LONGEST) == b""
        except ConnectionResetError:  # it has not even read what was sent
            return True


@pytest.fixture
def talk() -> Iterator[Talk]:
    """A launcher that has been told nothing."""
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
        self.claim, self.out, self.err = (
            self.root / ".claim.main.0",
            self.logs / "main.stdout.0",
            self.logs / "main.stderr.0",
        )

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was started: there is neither a claim nor a log."""
        return not any(self.logs.iterdir()) and len([*self.root.iterdir()]) == 1


def payload(*words: str, **env: str) -> int:
    """Return a descriptor of what is to be started."""
    given = Payload(
        words=[*map(os.fsencode, words)],
        env={os.fsencode(name): os.fsencode(value) for name, value in env.items()},
    )
    return sealed(msgspec.msgpack.encode(given))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
