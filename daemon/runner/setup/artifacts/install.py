"""Send a downloaded tree as a stream, which the launcher unpacks as the task's user."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO

import msgspec

from daemon.launcher.messages import ArchiveMember
from daemon.launcher.unpacker import LENGTH
from daemon.runner.setup.artifacts.archive import BadArchive

_PIECE = 256 * 1024
_WRITE = 0o222
_encoder = msgspec.msgpack.Encoder()


def send(
    tree: str, stream: BinaryIO, check: Callable[[], None], *, is_read_only: bool = False
) -> None:
    """Write a tree to a stream; links come last. `check` can abort by raising an exception.

    With `is_read_only`, the files get no write permission.

    Raises `BadArchive` or `OSError`.
    """
    for member, path in _members(tree):
        check()
        if is_read_only and member.kind == "file":
            member = msgspec.structs.replace(member, mode=member.mode & ~_WRITE)
        _write(stream, member)
        if member.kind == "file":
            with open(path, "rb") as file:
                remaining = member.size
                while remaining and (chunk := file.read(min(remaining, _PIECE))):
                    check()
                    stream.write(chunk)
                    remaining -= len(chunk)
    stream.write(bytes(LENGTH))
    stream.flush()


def _write(stream: BinaryIO, member: ArchiveMember) -> None:
    data = _encoder.encode(member)
    stream.write(len(data).to_bytes(LENGTH) + data)


def _members(tree: str) -> Iterator[tuple[ArchiveMember, str]]:
    links = []
    for folder, folders, files in os.walk(tree):
        for name in (*folders, *files):
            path = f"{folder}/{name}"
            inner, facts = os.fsencode(path)[len(os.fsencode(tree)) + 1 :], os.lstat(path)
            mode = stat.S_IMODE(facts.st_mode) & 0o777
            if stat.S_ISLNK(facts.st_mode):
                target = os.fsencode(os.readlink(path))
                links.append(
                    (ArchiveMember(path=inner, kind="link", mode=0, size=0, target=target), path)
                )
            elif stat.S_ISDIR(facts.st_mode):
                yield ArchiveMember(path=inner, kind="folder", mode=mode, size=0, target=b""), path
            elif stat.S_ISREG(facts.st_mode):
                size = facts.st_size
                yield ArchiveMember(path=inner, kind="file", mode=mode, size=size, target=b""), path
            else:
                raise BadArchive(f"{name!r} is neither a file nor a directory")
    yield from links


def discard(tree: str) -> None:
    """Delete a directory tree that the daemon created."""
    shutil.rmtree(tree, ignore_errors=True)
