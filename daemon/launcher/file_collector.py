"""Collect files of a task by patterns, in a child process that runs as the task's user.

The output is a stream. The length of each `FilePart` precedes it; the length 0 marks the end. The
child changes to the user before it opens a file. It follows no link, enters no mount, and opens
regular files only. So a task cannot make the child read a file that the task itself cannot read.
"""

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import BinaryIO

import msgspec

from daemon.launcher.alloc_dir import PRIVATE, SECRETS
from daemon.launcher.claims_and_logs import SHARED, below
from daemon.launcher.messages import CollectFiles, FilePart, Owner
from daemon.launcher.safe_open import facts_of, step
from daemon.launcher.task_files import leads_elsewhere, user_of

LENGTH = 4  # bytes of the length of a part
ANY_DEPTH = "**"
_PIECE = 256 * 1024
_MOST_ENTRIES = 100_000  # entries of all directories that one request searches
_DEEPEST = 64  # maximum depth of directories
_HIDDEN = "."  # only patterns that begin with it match such names
_WILD = frozenset("*?[")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_encoder = msgspec.msgpack.Encoder()


class _TooMuch(Exception):
    """A search has reached one of its limits."""


def find(directory: str, request: CollectFiles) -> tuple[dict[str, int], Owner]:
    """Open the top-level directories of all patterns, and look up the task's user.

    Return the descriptors by directory name, and the user with whose privileges files are read.
    Raises `OSError`.
    """
    descriptors: dict[str, int] = {}
    try:
        with below(directory, request.allocation) as home:
            owner = user_of(home, request.task)
            for pattern in request.patterns:
                first = _checked(request.task, pattern)
                if first not in descriptors:
                    descriptors[first] = step(home, first, _DIRECTORY)
    except OSError:
        for descriptor in descriptors.values():
            os.close(descriptor)
        raise
    return descriptors, owner


def _checked(task: str, pattern: str) -> str:
    """Return the first component of a pattern.

    Raises `OSError` for a path outside the task, or for the secrets of a task.
    """
    first, *names = pattern.split("/")
    is_own = first in (task, SHARED) and names and names[0] not in (SECRETS, PRIVATE)
    if not is_own or any(map(leads_elsewhere, names)):
        raise OSError(errno.EPERM, "files at this path cannot be kept", pattern)
    return first


def collect(descriptors: Mapping[str, int], request: CollectFiles, stream: BinaryIO) -> None:
    """Write the matching files to a stream. Raises `OSError` if the stream fails."""
    collection = _Collection(request, stream)
    try:
        for pattern in request.patterns:
            first, *names = pattern.split("/")
            collection.take(descriptors[first], first, names, pattern)
    except _TooMuch as error:
        collection.send(FilePart(path=b"", data=b"", is_end=True, reason=str(error)))
    stream.write(bytes(LENGTH))


class _Collection:
    """Writes one stream of collected files, within the remaining limits of the request."""

    def __init__(self, request: CollectFiles, stream: BinaryIO) -> None:
        self._request, self._stream = request, stream
        self._entries = 0
        self._left = request.most_total  # bytes
        self._seen: set[str] = set()

    def send(self, part: FilePart) -> None:
        """Write a `FilePart` to the stream."""
        data = _encoder.encode(part)
        self._stream.write(len(data).to_bytes(LENGTH))
        self._stream.write(data)

    def take(self, descriptor: int, path: str, names: list[str], pattern: str) -> None:
        """Send the files that match a pattern, or report that no file matches.

        `names` are the components of the pattern below the open directory, whose path is `path`.
        Raises `_TooMuch`.
        """
        is_found = False
        for directory, file_path in self._matches(descriptor, path, names, depth=0):
            is_found = True
            if file_path not in self._seen:
                if len(self._seen) == self._request.most_files:
                    raise _TooMuch(f"more than {self._request.most_files} files match")
                self._seen.add(file_path)
                self._send_file(directory, file_path)
        if not is_found:
            reason = f"no file matches {pattern.partition('/')[2]}"
            self.send(FilePart(path=b"", data=b"", is_end=True, reason=reason))

    def _matches(
        self, directory: int, path: str, names: list[str], depth: int
    ) -> Iterator[tuple[int, str]]:
        """Yield a pair for each match: a descriptor of its directory, and its path.

        `names` are the remaining components of the pattern. Links count as matches, so that the
        result can report them. Raises `_TooMuch`.
        """
        first, *remaining = names
        if depth > _DEEPEST:
            raise _TooMuch(f"{path!r} is more than {_DEEPEST} directories deep")
        if first == ANY_DEPTH and remaining:
            yield from self._matches(directory, path, remaining, depth)
        for name in self._names(directory, first):
            if depth == 0 and name in (SECRETS, PRIVATE):
                continue
            full_path = f"{path}/{name}"
            try:
                mode = facts_of(directory, name).st_mode
            except FileNotFoundError:
                continue
            except OSError as error:  # a mount, for example
                self._refuse(full_path, error)
                continue
            if not stat.S_ISDIR(mode):
                if not remaining:
                    yield directory, full_path
                continue
            deeper = names if first == ANY_DEPTH else remaining
            if deeper:
                yield from self._matches_inside(directory, name, full_path, deeper, depth + 1)

    def _matches_inside(
        self, directory: int, name: str, path: str, names: list[str], depth: int
    ) -> Iterator[tuple[int, str]]:
        try:
            inner = step(directory, name, _DIRECTORY)
        except OSError as error:  # locked, a mount, or just removed
            self._refuse(path, error)
            return
        try:
            yield from self._matches(inner, path, names, depth)
        finally:
            os.close(inner)

    def _names(self, directory: int, pattern: str) -> list[str]:
        """Return the names in a directory that match a pattern, sorted. Raises `_TooMuch`."""
        if not _WILD & {*pattern}:
            return [pattern]
        matching = []
        with os.scandir(directory) as entries:
            for entry in entries:
                self._entries += 1
                if self._entries > _MOST_ENTRIES:
                    raise _TooMuch(f"the search covers more than {_MOST_ENTRIES} files")
                if entry.name.startswith(_HIDDEN) and not pattern.startswith(_HIDDEN):
                    continue
                if pattern == ANY_DEPTH or fnmatchcase(entry.name, pattern):
                    matching.append(entry.name)
        return sorted(matching)

    def _send_file(self, directory: int, path: str) -> None:
        """Send a file, or the reason why it cannot be sent."""
        name = path.rpartition("/")[2]
        try:
            descriptor = _opened(directory, name)
        except OSError as error:
            self._refuse(path, error)
            return
        try:
            self._send_content(descriptor, path)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._refuse(path, error)
        finally:
            os.close(descriptor)

    def _send_content(self, descriptor: int, path: str) -> None:
        """Send the content of an open file. Raises `OSError`."""
        facts, most = os.fstat(descriptor), self._request.most_bytes
        if not stat.S_ISREG(facts.st_mode):  # replaced since it was found
            raise OSError(errno.EINVAL, "it is not a regular file")
        if facts.st_nlink > 1 and os.geteuid() == 0:
            raise OSError(errno.EPERM, "it has a second link: another user may own the file")
        if facts.st_size > most:
            raise OSError(errno.EFBIG, f"it has {facts.st_size} bytes, more than {most}")
        if facts.st_size > self._left:
            raise OSError(
                errno.EDQUOT,
                f"it has {facts.st_size} bytes, more than the {self._left} that are left in its namespace",
            )
        most, size = min(most, self._left), 0
        while chunk := os.read(descriptor, _PIECE):
            size += len(chunk)
            self._left -= len(chunk)
            if size > most:
                raise OSError(errno.EFBIG, f"it grew to more than {most} bytes")
            self.send(FilePart(path=os.fsencode(path), data=chunk, is_end=False, reason=""))
        self.send(FilePart(path=os.fsencode(path), data=b"", is_end=True, reason=""))

    def _refuse(self, path: str, error: OSError) -> None:
        reason = error.strerror or str(error)
        self.send(FilePart(path=os.fsencode(path), data=b"", is_end=True, reason=reason))


def _opened(directory: int, name: str) -> int:
    """Return a descriptor of a regular file. Raises `OSError`."""
    mode = facts_of(directory, name).st_mode
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "it is a link, and links are not followed")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return step(directory, name, _READ)
