"""File access for one task through the launcher.

Paths are relative to the allocation directory. They begin with the name of the task or of the
shared directory. `own` and `resolve` return such paths.
"""

import errno
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from daemon.launcher.client import Launcher
from daemon.launcher.messages import (
    CollectFiles,
    Kind,
    Owner,
    ReadFile,
    ReadNote,
    UnpackStream,
    WriteFile,
    WriteNote,
)
from daemon.runner.core import task_dir
from daemon.runner.core.safe_open import PathEscape, fitting_path, relative_path
from daemon.runner.core.task_env import TaskDirectories

Signature = tuple[int, int, int]  # changes whenever the content of the file changes


class TaskFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Access to the files of one task. `places` are its directories as the task sees them."""

    launcher: Launcher
    allocation: str
    task: str
    places: TaskDirectories

    @property
    def staging_name(self) -> str:
        """Return the name of the daemon's own directory for this task, with safe characters only.

        A task name may contain any character except slashes.
        """
        return f"{self.allocation}.{hashlib.sha256(self.task.encode()).hexdigest()[:16]}"

    def own(self, path: str) -> str:
        """Return a path below the task directory. Raises `PathEscape`."""
        return fitting_path(f"{self.task}/{relative_path(path)}")

    def resolve(self, path: str) -> str:
        """Convert a path that the task uses to a path for the launcher. Raises `PathEscape`."""
        return fitting_path(task_dir.resolve_task_path(self.task, self.places, path))

    async def write(
        self,
        path: str,
        content: bytes,
        *,
        mode: int = 0o600,
        is_new: bool = False,
        owner: Owner | None = None,
    ) -> None:
        """Write a file atomically, and create its parent directories.

        The file belongs to the task's user or to `owner`. An existing file is replaced, or kept if
        `is_new` is set. Raises `PathEscape` or `OSError`.
        """
        request = WriteFile(
            allocation=self.allocation,
            task=self.task,
            path=path,
            mode=mode,
            is_new=is_new,
            owner=owner,
        )
        with _escaping():
            await self.launcher.write(request, content)

    async def read(self, path: str, most: int) -> bytes:
        """Return up to `most` bytes from the start of a file.

        Raises `PathEscape` or `OSError`, including for non-regular files.
        """
        with _escaping():
            return (await self.launcher.read(self._read(path, most)))[1]

    async def signature(self, path: str) -> Signature:
        """Return the signature of a file, which changes with its content.

        Raises `PathEscape` or `OSError`.
        """
        with _escaping():
            metadata, _ = await self.launcher.read(self._read(path, 0))
        return metadata.inode, metadata.size, metadata.modified

    def _read(self, path: str, most: int) -> ReadFile:
        return ReadFile(allocation=self.allocation, task=self.task, path=path, most=most)

    async def unpack(self, path: str, stream: int, *, size: int, count: int) -> None:
        """Unpack a stream into a directory, within limits.

        `size` limits the bytes, and `count` the number of files and directories. Raises
        `PathEscape`, `OSError`, or `ValueError` for invalid entries.
        """
        request = UnpackStream(
            allocation=self.allocation,
            task=self.task,
            path=path,
            most_bytes=size,
            most_members=count,
        )
        with _escaping():
            await self.launcher.unpack(request, stream)

    async def collect(
        self, patterns: Sequence[str], stream: int, *, size: int, total: int, count: int
    ) -> None:
        """Write all files that match `patterns` to the pipe `stream`. Raises `OSError`.

        `size` limits the bytes of each file, `total` the bytes of all files, and `count` the number
        of files. A pattern is relative to the task directory, unless it begins with the name of the
        shared directory.
        """
        shared = f"{task_dir.SHARED}/"
        await self.launcher.collect(
            CollectFiles(
                allocation=self.allocation,
                task=self.task,
                patterns=[
                    pattern if pattern.startswith(shared) else f"{self.task}/{pattern}"
                    for pattern in patterns
                ],
                most_bytes=size,
                most_total=total,
                most_files=count,
            ),
            stream,
        )

    async def write_note(self, kind: Kind, text: str | None) -> None:
        """Store a note that tasks cannot read; None deletes the note. Raises `OSError`."""
        await self.launcher.write_note(
            WriteNote(allocation=self.allocation, task=self.task, kind=kind, text=text)
        )

    async def recall(self, kind: Kind) -> str | None:
        """Return the text of a note, or None. Raises `OSError`."""
        return await self.launcher.recall(
            ReadNote(allocation=self.allocation, task=self.task, kind=kind)
        )


@contextmanager
def _escaping() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise PathEscape from None
        raise
