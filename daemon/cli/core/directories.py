"""Directories that `run --with` gives to the tasks of a job, each as one archive.

The archive depends on names, contents and execute bits only. So an unchanged directory has the same
digest, and is uploaded once.
"""

import hashlib
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from storage.errors import Invalid

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,39}", re.ASCII)
_MOST = 8  # directories of one job
_MOST_ENTRIES = 100_000
_DIGITS = 12  # digits of the digest in the name of the file
_FILE, _PROGRAM, _FOLDER = 0o444, 0o555, 0o755


class PackedDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A directory as an archive: its name in `local/`, and the name and path of the archive.

    `members` is the number of files and directories in the archive.
    """

    name: str
    file: str
    path: Path
    members: int


@contextmanager
def packed(directories: Sequence[str]) -> Iterator[list[PackedDirectory]]:
    """Yield the archives of directories; delete the archives after the block. Raises `Invalid`."""
    if len(directories) > _MOST:
        raise Invalid(f"--with names {len(directories)} directories: a job has at most {_MOST}")
    with tempfile.TemporaryDirectory(prefix="steward-with.") as staging:
        archives: dict[str, PackedDirectory] = {}
        for number, directory in enumerate(directories):
            name = Path(os.path.abspath(directory)).name
            if not _NAME.fullmatch(name):
                raise Invalid(
                    f"--with {directory!r}: the name of the directory must have at most 40 letters, "
                    "digits, and . _ -"
                )
            if name in archives:
                raise Invalid(f"--with names two directories {name!r}: rename one of them")
            path = Path(staging, str(number))
            file, members = _pack(directory, name, path)
            archives[name] = PackedDirectory(name=name, file=file, path=path, members=members)
        yield [*archives.values()]


def _pack(directory: str, name: str, path: Path) -> tuple[str, int]:
    """Write a directory to an archive at `path`; return its name and the number of its members.

    Raises `Invalid`.
    """
    members = 0
    try:
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
            for inner, outer in _entries(directory):
                _add(archive, f"{name}/{inner}", outer)
                members += 1
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Invalid(
            f"--with {directory}: cannot read {error.filename}: {error.strerror}"
        ) from error
    return f"{name}-{digest[:_DIGITS]}.tar", members


def _entries(directory: str) -> Iterator[tuple[str, str]]:
    """Yield the relative path and the path of each entry below a directory, always in one order.

    Raises `Invalid` or `OSError`.
    """

    def fail(error: OSError) -> None:
        raise error

    number = 0
    for folder, folders, files in os.walk(directory, onerror=fail):
        folders.sort()
        for entry in sorted([*folders, *files]):
            number += 1
            if number > _MOST_ENTRIES:
                raise Invalid(f"--with {directory}: it has more than {_MOST_ENTRIES} files")
            path = f"{folder}/{entry}"
            yield os.path.relpath(path, directory), path


def _add(archive: tarfile.TarFile, name: str, path: str) -> None:
    """Add a file or a directory. Raises `Invalid` for anything else, and `OSError`."""
    facts = os.lstat(path)
    entry = tarfile.TarInfo(name)
    if stat.S_ISDIR(facts.st_mode):
        entry.type, entry.mode = tarfile.DIRTYPE, _FOLDER
        archive.addfile(entry)
        return
    if not stat.S_ISREG(facts.st_mode):
        kind = "a link" if stat.S_ISLNK(facts.st_mode) else "not a regular file"
        raise Invalid(f"--with: {path} is {kind}: copy its content, or remove it")
    with open(path, "rb", opener=_opener) as file:
        facts = os.fstat(file.fileno())
        entry.size = facts.st_size
        entry.mode = _PROGRAM if facts.st_mode & stat.S_IXUSR else _FILE
        try:
            archive.addfile(entry, file)
        except OSError as error:
            raise Invalid(f"--with: {path} changed while it was read: run the command again") from (
                error
            )


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def with_artifacts(job: object, directories: Sequence[PackedDirectory]) -> object:
    """Return a job whose tasks get the directories below `local/`, read-only."""
    artifacts = [
        {
            "GetterSource": f"payload://{directory.file}",
            "GetterOptions": {"readonly": "true"},
            "RelativeDest": "local/",
        }
        for directory in directories
    ]

    def extended(value: object, keys: tuple[str, ...]) -> object:
        """Return a copy of `value`; add the artifacts to each object at the path `keys`."""
        if not isinstance(value, Mapping):
            return value
        key_name = keys[0] if keys else "artifacts"
        extended_value = dict(value)
        key = next(
            (spelling for spelling in extended_value if spelling.lower() == key_name),
            _SPELLED[key_name],
        )
        inner = extended_value.get(key)
        items = inner if isinstance(inner, list) else []
        extended_value[key] = (
            [extended(member, keys[1:]) for member in items] if keys else [*items, *artifacts]
        )
        return extended_value

    return extended(job, ("taskgroups", "tasks"))


_SPELLED = {"taskgroups": "TaskGroups", "tasks": "Tasks", "artifacts": "Artifacts"}
