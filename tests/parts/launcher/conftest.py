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


class Outputs:
    """The descriptors of a start: what to start, a claim, standard output and error."""

    def __init__(self, directory: Path) -> None:
        self.claim, self.out = directory / "claim", directory / "out"
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.files = tuple(os.open(one, flags) for one in (self.claim, self.out, self.out))

    def of(self, *words: str, **env: str) -> tuple[int, ...]:
        payload = Payload(
            words=[*map(os.fsencode, words)],
            env={os.fsencode(name): os.fsencode(value) for name, value in env.items()},
        )
        return (sealed(msgspec.msgpack.encode(payload)), *self.files)


@pytest.fixture
def outputs(tmp_path: Path) -> Iterator[Outputs]:
    opened = Outputs(tmp_path)
    yield opened
    close(opened.files)
