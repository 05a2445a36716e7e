"""Random messages to launchers: almost valid bytes, and valid messages with odd values.

The odd values are fields of every request type, and fit their types. So the launcher has to judge
them, and must continue.
"""

import os
import random
import re
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from daemon.launcher import server
from daemon.launcher.channel import close, sealed, send
from daemon.launcher.messages import (
    CreateAllocDir,
    Hello,
    MakeVolume,
    MountSecrets,
    NumberedRequest,
    ProgramCommand,
    StartProgram,
    StartSession,
    StartTask,
    TaskCommand,
)
from tests.parts.launcher.conftest import ALLOCATION, Talk

# These requests create files by design.
_MAKING = (Hello, CreateAllocDir, MakeVolume, MountSecrets)
_KINDS = [kind for kind in server._TABLE if kind not in _MAKING]
_RECORDS = {StartTask: TaskCommand, StartSession: TaskCommand, StartProgram: ProgramCommand}
_TEXTS = [
    *("", ".", "..", "-", "--", "*", "/", "a", "main", "alloc", "alloc/data", "main/local"),
    *(ALLOCATION, ALLOCATION[::-1], "../" * 40 + "etc/shadow", "/etc/shadow", "main/secrets/x"),
    *("alloc/logs/main.stdout.0", "/proc/self/root", "root", "0", "nobody", "4294967295", "\u2028"),
    *("TERM", "SIGKILL", "SIGCONT", "SIGRTMIN", "-1", "--uid=0", "local", "x" * 255, "a\nb", "::1"),
    *("127.0.0.1", "example.org", "ndots:1", "\udcff".encode("utf-8", "replace").decode()),
    *("/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/x/cgroup.procs"),
]
_BYTES = [b"", b"true", b"/bin/true", b"/nowhere", b"\0", b"\xff", b"../true", b"-c", b"PATH"]


def until_readable(descriptor: int) -> None:
    """Wait for input; `poll` accepts descriptors beyond 1,023."""
    waits = select.poll()
    waits.register(descriptor, select.POLLIN)
    waits.poll()


def fuzz(rng: random.Random, directory: Path, number: int) -> int:
    """Send `number` messages to launchers; return the number of messages that stopped a launcher.

    The messages create nothing in the directory, except for the files of a launcher's start.
    """
    ended, talk = 0, None
    before = made(directory)
    for _ in range(number):
        if talk is None:
            talk = Talk()
            talk.greet(directory)
        random_one = rng.choice((nearly_right, odd, odd))
        data, descriptors = random_one(rng)
        send(talk.channel, data, descriptors)
        close(descriptors)
        until_readable(talk.channel.fileno())
        is_over = talk.has_ended()
        assert not (is_over and random_one is odd), data
        if is_over:
            talk.channel.close()
            ended, talk = ended + 1, None
    if talk is not None:
        talk.channel.close()
    assert made(directory) == before
    return ended


def made(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.name != server.LOCK}


def nearly_right(rng: random.Random) -> tuple[bytes, list[int]]:
    """Return bytes that are random, or a changed message, with up to nine descriptors."""
    descriptors = [
        sealed(rng.randbytes(rng.randrange(40)))
        if rng.random() < 0.5
        else os.open("/dev/null", os.O_RDWR)
        for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 3, 9)))
    ]
    body = value_of(rng, rng.choice(_KINDS))
    count = min(8, len(descriptors))
    question = NumberedRequest(number=rng.randrange(2**32), descriptors=count, body=body)
    data = bytearray(msgspec.msgpack.encode(question))
    match rng.randrange(4):
        case 0:
            data = bytearray(rng.randbytes(rng.randrange(1, 200)))
        case 1:
            data = data[: rng.randrange(1, len(data))]
        case 2:
            data += rng.randbytes(rng.randrange(1, 9))
        case _:
            for _ in range(rng.randrange(4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data), descriptors


def odd(rng: random.Random) -> tuple[bytes, list[int]]:
    """Return a message of a valid form, with its descriptors."""
    kind = rng.choice(_KINDS)
    count = rng.choice(server._TABLE[kind][0])
    descriptors = []
    for place in range(count):
        record = None if place else _RECORDS.get(kind)
        content = (
            rng.randbytes(rng.randrange(200))
            if record is None
            else msgspec.msgpack.encode(value_of(rng, record))
        )
        descriptors.append(sealed(content))
    question = NumberedRequest(
        number=rng.randrange(2**32), descriptors=count, body=value_of(rng, kind)
    )
    return msgspec.msgpack.encode(question), descriptors


def value_of(rng: random.Random, kind: Any) -> Any:
    """Return a random value of a type, as the protocol allows it."""
    return _value(rng, inspect.type_info(kind))


def _value(rng: random.Random, kind: inspect.Type) -> Any:
    return _MAKERS[type(kind)](rng, kind)


def _struct(rng: random.Random, kind: inspect.StructType) -> Any:
    return kind.cls(**{field.name: _value(rng, field.type) for field in kind.fields})


def _text(rng: random.Random, kind: inspect.StrType) -> str:
    pattern = re.compile(kind.pattern or "")
    fitting = [
        text for text in _TEXTS if pattern.search(text) and len(text) <= (kind.max_length or 4096)
    ]
    return rng.choice(fitting)


def _whole(rng: random.Random, kind: inspect.IntType) -> int:
    least = -(2**63) if kind.ge is None else kind.ge
    most = min(2**63 - 1 if kind.le is None else kind.le, 2**63 if kind.lt is None else kind.lt - 1)
    return rng.choice(
        [least, most, *(item for item in (0, 1, 2, 7, 2**31, 2**32 - 2) if least <= item <= most)]
    )


def _list(rng: random.Random, kind: inspect.ListType) -> list[Any]:
    return [_value(rng, kind.item_type) for _ in range(rng.choice((0, 1, 1, 2, 5)))]


def _dict(rng: random.Random, kind: inspect.DictType) -> dict[Any, Any]:
    pairs = ((kind.key_type, kind.value_type) for _ in range(rng.choice((0, 1, 3))))
    return {_value(rng, key): _value(rng, value) for key, value in pairs}


_MAKERS: dict[type, Callable[[random.Random, Any], Any]] = {
    inspect.StructType: _struct,
    inspect.StrType: _text,
    inspect.IntType: _whole,
    inspect.ListType: _list,
    inspect.DictType: _dict,
    inspect.BoolType: lambda chance, _: chance.random() < 0.5,
    inspect.NoneType: lambda *_: None,
    inspect.BytesType: lambda chance, _: chance.choice(_BYTES),
    inspect.LiteralType: lambda chance, kind: chance.choice(kind.values),
    inspect.UnionType: lambda chance, kind: _value(chance, chance.choice(kind.types)),
    inspect.TupleType: lambda chance, kind: tuple(
        _value(chance, item_type) for item_type in kind.item_types
    ),
}
