"""The files of an allocation, as its owner may look at them: names, facts and contents.

Everything is opened by `beneath.py`, so nothing outside of the allocation's directory can be
reached. What the daemon keeps there for itself does not show; the logs of tasks show as the
numbered files that clients expect. Nobody reads a file in a secret directory of a task. Only callers
who may see secrets get the names, sizes and times of such files, or learn whether one exists.
"""

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from daemon.runner.beneath import Escapes, inner, open_beneath
from daemon.runner.logs import File, TaskLog
from daemon.runner.taskdir import PRIVATE, SECRETS, SHARED
from storage.errors import Refused

_CLOSED = frozenset({SECRETS, PRIVATE})  # directories of each task
_OWN = "."  # with which the names of what the daemon keeps there begin
_LOGS = f"{SHARED}/logs"
_SNIFFED = 512  # bytes that tell the kind of a file
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_UNKNOWN = "application/octet-stream"
_TEXT = "text/plain; charset=utf-8"
_SIGNATURES = (
    (b"%PDF-", "application/pdf"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b\x08", "application/x-gzip"),
    (b"<?xml", "text/xml; charset=utf-8"),
)
_MARKUP = (b"<!doctype html", b"<html", b"<head", b"<body", b"<script", b"<!--")
# What never stands in a text: control characters but for tab, line feed, form feed, return, escape.
_BINARY = frozenset(range(0x20)) - frozenset(b"\t\n\f\r\x1b")


class Prohibited(Refused):
    """A file is secret; the text is the peer's."""

    def __init__(self, path: str) -> None:
        super().__init__(f"Reading secret file prohibited: {path}")


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a file; `modified` in nanoseconds, `kind` as a content type."""

    name: str
    mode: int
    size: int
    modified: int
    kind: str = ""

    @property
    def is_directory(self) -> bool:
        """Tell whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_regular(self) -> bool:
        """Tell whether it is a file that can be read from its beginning to its end."""
        return stat.S_ISREG(self.mode)


class Files:
    """The files of one allocation; `logs` are those of its tasks, by the stems of their names.

    With `sees_secrets` the names and sizes in secret directories are shown, but never the contents.
    """

    def __init__(
        self, directory: str, logs: Mapping[str, TaskLog], *, sees_secrets: bool = False
    ) -> None:
        self._root, self._logs, self._sees_secrets = directory, logs, sees_secrets

    def full(self, path: str) -> str:
        """Return a path as it is on this machine, for people. Raises `Escapes`."""
        below = inner(path)
        return f"{self._root}/{below}" if below else self._root

    def entries(self, path: str) -> list[Info]:
        """Return the facts about everything in a directory, by name.

        Raises `Escapes`, `Prohibited` or `OSError`.
        """
        descriptor = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            place = self._place(descriptor)
            with os.scandir(descriptor) as found:
                infos = [info for entry in found if (info := _entry(entry)) is not None]
        finally:
            os.close(descriptor)
        if not self._sees_secrets and place != [""]:
            infos = [info for info in infos if not _is_closed([*place, info.name])]
        match inner(path):
            case "":
                infos = [info for info in infos if not info.name.startswith(_OWN)]
            case where if where == _LOGS:
                infos = [info for info in infos if not self._is_log(info.name)] + self._stretches()
        return sorted(infos, key=lambda info: info.name)

    def _is_log(self, name: str) -> bool:
        stem, _, number = name.rpartition(".")
        return stem in self._logs and number.isdecimal()

    def _stretches(self) -> list[Info]:
        return [_of_stretch(log, file) for log in self._logs.values() for file in log.files()]

    def _stretch(self, path: str) -> tuple[TaskLog, File] | None:
        """Return the log and the numbered file of it that a path means."""
        folder, _, name = inner(path).rpartition("/")
        if folder != _LOGS or not self._is_log(name):
            return None
        log = self._logs[name.rpartition(".")[0]]
        for file in log.files():
            if file.name == f"{_LOGS}/{name}":
                return log, file
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def info(self, path: str) -> Info:
        """Return the facts about a file, with its kind. Raises `Escapes`, `Prohibited`, `OSError`."""
        if found := self._stretch(path):
            log, file = found
            chunk = log.read(file.start, _SNIFFED)
            return msgspec.structs.replace(
                _of_stretch(log, file), kind=kind_of(chunk.data if chunk else b"")
            )
        descriptor = self._open(path, os.O_PATH)
        try:
            facts = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        kind = kind_of(self._head(path)) if stat.S_ISREG(facts.st_mode) else _UNKNOWN
        name = inner(path).rpartition("/")[2] or os.path.basename(self._root)
        return _info(name, facts, kind)

    def _head(self, path: str) -> bytes:
        try:
            return self.read(path, 0, _SNIFFED)
        except (Refused, OSError):
            return b""

    def read(self, path: str, offset: int, most: int) -> bytes:
        """Return what stands at an offset of a file; nothing at its end.

        Raises `Escapes`, `Prohibited` or `OSError`.
        """
        if found := self._stretch(path):
            log, file = found
            if offset >= file.size:
                return b""
            chunk = log.read(file.start + offset, min(most, file.size - offset))
            return chunk.data if chunk else b""
        descriptor = self._open(path, _READ)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return b""
            if self._is_secret(descriptor):
                raise Prohibited(path)
            return os.pread(descriptor, most, offset)
        finally:
            os.close(descriptor)

    def _open(self, path: str, flags: int) -> int:
        """Open a file unless it is the daemon's own. Raises `Escapes`, `Prohibited`, `OSError`."""
        if not self._sees_secrets and _is_closed(inner(path).split("/")):
            raise Prohibited(path)
        try:
            descriptor = open_beneath(self._root, path, flags)
        except (OSError, Escapes):
            self._keep_quiet(path)
            raise
        if self._place(descriptor)[0].startswith(_OWN):
            os.close(descriptor)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self._is_secret(descriptor) and not self._sees_secrets:
            os.close(descriptor)
            raise Prohibited(path)
        return descriptor

    def _keep_quiet(self, path: str) -> None:
        """Raise `Prohibited` if the reason why a path cannot be opened tells of secret files.

        The deepest place on the way decides: links of the task may lead from anywhere.
        """
        if self._sees_secrets:
            return
        place = inner(path)
        while place:
            with suppress(OSError, Escapes):
                descriptor = open_beneath(self._root, place, os.O_PATH)
                try:
                    if self._is_secret(descriptor):
                        raise Prohibited(path)
                finally:
                    os.close(descriptor)
                return
            place = place.rpartition("/")[0]

    def _place(self, descriptor: int) -> list[str]:
        """Return where a file really lies, whatever link has led there: its path in pieces."""
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        return place.removeprefix(os.path.realpath(self._root)).split("/")[1:] or [""]

    def _is_secret(self, descriptor: int) -> bool:
        """Tell whether a file lies in a secret directory."""
        return _is_closed(self._place(descriptor))


def _is_closed(place: list[str]) -> bool:
    """Return whether a place, in pieces, is a secret directory of a task or lies in one."""
    return len(place) > 1 and place[1] in _CLOSED


def _entry(entry: os.DirEntry[str]) -> Info | None:
    try:
        name = os.fsencode(entry.name).decode(errors="replace")  # tasks may write any bytes
        return _info(name, entry.stat(follow_symlinks=False))
    except FileNotFoundError:  # removed in this moment
        return None


def _info(name: str, facts: os.stat_result, kind: str = "") -> Info:
    return Info(
        name=name, mode=facts.st_mode, size=facts.st_size, modified=facts.st_mtime_ns, kind=kind
    )


def _of_stretch(log: TaskLog, file: File) -> Info:
    facts = os.lstat(log.path)
    return Info(
        name=file.name.rpartition("/")[2],
        mode=facts.st_mode,
        size=file.size,
        modified=facts.st_mtime_ns,
    )


def kind_of(head: bytes) -> str:
    """Return the content type of a file that begins like this, as browsers guess it."""
    if not head:
        return _UNKNOWN
    text = head.lstrip(b"\t\n\f\r ").lower()
    if text.startswith(_MARKUP):
        return "text/html; charset=utf-8"
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            return kind
    return _UNKNOWN if _BINARY.intersection(head) else _TEXT


def mode_text(mode: int) -> str:
    """Return a mode as the peer's clients read it: `drwxr-xr-x`, `-rw-r--r--`, `Lrwxrwxrwx`."""
    kinds = {
        stat.S_IFDIR: "d",
        stat.S_IFLNK: "L",
        stat.S_IFBLK: "D",
        stat.S_IFIFO: "p",
        stat.S_IFSOCK: "S",
        stat.S_IFCHR: "Dc",
    }
    bits = ((stat.S_ISUID, "u"), (stat.S_ISGID, "g"))
    letters = kinds.get(stat.S_IFMT(mode), "")
    marks = "".join(letter for bit, letter in bits if mode & bit)
    kind, character = letters[:1], letters[1:]
    before = f"{kind}{marks}{character}{'t' if mode & stat.S_ISVTX else ''}" or "-"
    rights = "".join(
        letter if mode & (1 << place) else "-"
        for place, letter in zip(range(8, -1, -1), "rwxrwxrwx", strict=True)
    )
    return before + rights
