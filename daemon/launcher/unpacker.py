"""Unpack artifacts into task directories, in a child process that runs as the task's user.

The input is a stream. Each entry has the length of an `ArchiveMember`, the `ArchiveMember`, and the
content if it is a file. The length 0 marks the end. The child changes to the user before it
reads a byte. It creates directories, files and links only, and follows no link. A malicious stream
can therefore do no more than the task itself.
"""

import errno
import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

import msgspec

from daemon.launcher.alloc_dir import DATA, LOCAL, SECRETS, TMP
from daemon.launcher.claims_and_logs import SHARED, below
from daemon.launcher.messages import MOST_TEXT, ArchiveMember, Owner, UnpackStream
from daemon.launcher.safe_open import step
from daemon.launcher.task_files import is_ours_alone, leads_elsewhere, user_of

LENGTH = 4  # bytes of the length of a member
_MOST_MEMBER = 4 * (MOST_TEXT + MOST_TEXT) + 64  # bytes
_PIECE = 256 * 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = 0o755
_NOBODY: Owner = (65534, 65534)
_member = msgspec.msgpack.Decoder(ArchiveMember)


def find(directory: str, request: UnpackStream) -> tuple[int, Owner]:
    """Return a descriptor of a task's directory, and the user that writes there.

    Raises `OSError`.
    """
    first, second, *_ = (*request.path.split("/"), "")
    of_task = first == request.task and second in (LOCAL, SECRETS, TMP)
    if not of_task and (first, second) != (SHARED, DATA):
        raise OSError(errno.EPERM, "artifacts cannot be placed at this path", request.path)
    with below(directory, request.allocation) as home:
        owner = user_of(home, request.task)
        with below(home, first) as above:
            parent = step(above, second, _DIRECTORY)
    is_open = owner[0] == os.geteuid() == 0 and not is_ours_alone(parent)
    return parent, _NOBODY if is_open else owner


def unpack(top: int, request: UnpackStream, stream: BinaryIO) -> None:
    """Unpack a stream below an open directory.

    Raises `ValueError` for invalid entries, or `OSError`.
    """
    os.umask(0o022)
    _, _, *names = request.path.split("/")
    with _entered(top, names) as target:
        unpacking = _Unpacking(target, request, stream)
        while unpacking.take():
            pass


@contextmanager
def _entered(top: int, names: list[str]) -> Iterator[int]:
    """Yield a descriptor of a subdirectory, without following links; create it if needed.

    Raises `OSError`.
    """
    current = os.dup(top)
    try:
        for name in names:
            if leads_elsewhere(name):
                raise ValueError(f"{name!r} points outside the directory")
            with suppress(FileExistsError):  # an earlier member created it
                os.mkdir(name, _FOLDER, dir_fd=current)
            deeper = step(current, name, _DIRECTORY)
            os.close(current)
            current = deeper
        yield current
    finally:
        os.close(current)


class _Unpacking:
    """Unpacks one stream, within the remaining limits of the request."""

    def __init__(self, target: int, request: UnpackStream, stream: BinaryIO) -> None:
        self._target, self._stream = target, stream
        self._request, self._bytes, self._members = request, 0, 0

    def take(self) -> bool:
        """Unpack the next entry; return false at the end of the stream."""
        length = int.from_bytes(self._read(LENGTH))
        if length == 0:
            return False
        if length > _MOST_MEMBER:
            raise ValueError(f"a member's header has {length} bytes, more than {_MOST_MEMBER}")
        try:
            member = _member.decode(self._read(length))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"invalid archive member: {error}") from None
        self._count(member)
        *folders, name = os.fsdecode(member.path).split("/")
        with _entered(self._target, [*folders, name] if member.kind == "folder" else folders) as fd:
            if member.kind != "folder":
                self._put(fd, name, member)
        return True

    def _count(self, member: ArchiveMember) -> None:
        self._members += member.kind != "folder"
        self._bytes += member.size
        if self._members > self._request.most_members or self._bytes > self._request.most_bytes:
            raise ValueError(
                f"more than {self._request.most_members} files or {self._request.most_bytes} bytes were sent"
            )

    def _put(self, folder: int, name: str, member: ArchiveMember) -> None:
        """Create a file or a link atomically, and replace an existing file or link."""
        if leads_elsewhere(name):
            raise ValueError(f"{name!r} points outside the directory")
        unfinished = f".{os.urandom(8).hex()}.unfinished"
        try:
            if member.kind == "link":
                os.symlink(_link_target(member), unfinished, dir_fd=folder)
            else:
                self._write(os.open(unfinished, _NEW, 0o600, dir_fd=folder), member)
            os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:
            raise ValueError(f"{name!r} cannot replace a directory") from None
        finally:
            with suppress(FileNotFoundError):  # it was renamed
                os.unlink(unfinished, dir_fd=folder)

    def _write(self, descriptor: int, member: ArchiveMember) -> None:
        with os.fdopen(descriptor, "wb") as file:
            remaining = member.size
            while remaining:
                chunk = self._read(min(remaining, _PIECE))
                file.write(chunk)
                remaining -= len(chunk)
            os.fchmod(descriptor, member.mode)

    def _read(self, size: int) -> bytes:
        chunk = self._stream.read(size)
        if len(chunk) < size:
            raise ValueError("unexpected end of the stream")
        return chunk


def _link_target(member: ArchiveMember) -> str:
    """Return the target of a link, which must stay below the directory. Raises `ValueError`."""
    path, target = os.fsdecode(member.path), os.fsdecode(member.target)
    end = posixpath.normpath(f"{posixpath.dirname(path)}/{target}".lstrip("/"))
    if not target or target.startswith("/") or end == ".." or end.startswith("../"):
        raise ValueError(f"a link to {target!r} points outside the artifact")
    return target
