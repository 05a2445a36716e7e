"""The files of one task, as the launcher writes and reads them for the daemon.

Paths lie below the directory of the allocation and begin with the task's name, or with that of the
shared directory: `own` and `meant` return such.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from daemon.launcher.client import Launcher
from daemon.launcher.messages import Kind, Note, Owner, Read, Recall, Write
from daemon.runner import taskdir
from daemon.runner.beneath import Escapes, inner
from daemon.runner.env import Directories

Signature = tuple[int, int, int]  # by what a change of a file can be seen


class TaskFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files. `places` are the task's directories as it sees them."""

    launcher: Launcher
    allocation: str
    task: str
    places: Directories

    def own(self, path: str) -> str:
        """Return a path below the task's directory. Raises `Escapes`."""
        return f"{self.task}/{inner(path)}"

    def meant(self, path: str) -> str:
        """Return what a path means to the task. Raises `Escapes`."""
        return taskdir.meant(self.task, self.places, path)

    async def write(
        self,
        path: str,
        content: bytes,
        *,
        mode: int = 0o600,
        is_new: bool = False,
        owner: Owner | None = None,
    ) -> None:
        """Put a file there, whole or not at all, with the folders above it.

        It belongs to the task's user, or to `owner`, and takes the place of what was there, unless it
        has to be new: then that stays. Raises `Escapes` or `OSError`.
        """
        request = Write(
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
        """Return the first bytes of a file. Raises `Escapes` or `OSError`, also for what is no file."""
        with _escaping():
            return (await self.launcher.read(self._read(path, most)))[1]

    async def signature(self, path: str) -> Signature:
        """Return by what a change of a file can be seen. Raises as above."""
        with _escaping():
            found, _ = await self.launcher.read(self._read(path, 0))
        return found.inode, found.size, found.modified

    def _read(self, path: str, most: int) -> Read:
        return Read(allocation=self.allocation, task=self.task, path=path, most=most)

    async def note(self, kind: Kind, text: str | None) -> None:
        """Keep a note that no task can see; without a text, remove it. Raises `OSError`."""
        await self.launcher.note(
            Note(allocation=self.allocation, task=self.task, kind=kind, text=text)
        )

    async def recall(self, kind: Kind) -> str | None:
        """Return what a note says; None: there is none. Raises `OSError`."""
        return await self.launcher.recall(
            Recall(allocation=self.allocation, task=self.task, kind=kind)
        )


@contextmanager
def _escaping() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise Escapes from None
        raise
