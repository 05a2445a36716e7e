"""Run git for one artifact in a sandbox, so that a hostile server cannot reach the daemon.

Git runs as a task of the driver `exec`, in an allocation that exists only for this artifact. Like
other tasks of this driver, it has a separate user, a sandbox, a system call filter and limits. The
launcher needs no special support for git. The main process of the task only waits. Each program of
the clone is an exec session inside the sandbox.

The sandbox ends with the artifact. It also ends when the daemon dies: one exec session
reads from the daemon, and at end of input kills all processes of the sandbox. If a process kills
this session, the next daemon removes the sandbox, like all unknown allocations.

The files come to the daemon as a tar archive, which it unpacks like any untrusted archive.
"""

import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import trio

from daemon.launcher.client import Launcher
from daemon.launcher.messages import AllocDirLayout, SendSignal, TaskDirLayout
from daemon.net.http_client import HttpError
from daemon.runner.core.driver import Attempt, Driver, ExecStream, StartFailed
from daemon.runner.core.task_files import TaskFiles
from daemon.runner.setup.artifacts.archive import ArchiveLimits, BadArchive, Unpacker
from daemon.runner.setup.artifacts.git import GitProcess, read_output
from storage.records.task import LogConfig, Resources

SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
_log = logging.getLogger("steward.runner")
_TASK = "git"
_PACE = 0.02  # seconds between two checks whether the sandbox has started
_BEGINS_WITHIN = 10.0  # seconds
_MORE = 60  # seconds that the sandbox may outlive the time limit of an artifact
_MEMORY_MB = 1024  # of all processes and their open files; each process also has its own limit
_MEMBER = 4096  # bytes that a tar archive needs for one file besides its content
# The end of the input, which the daemon holds open, stops all processes of the sandbox.
_LEASH = ("/bin/sh", "-c", "read -r _; kill -KILL -1")
_PACK = ("/bin/sh", "-c", 'exec 2>/dev/null; rm -rf "$0/.git" && exec tar -C "$0" -cf - .')


class GitSandbox:
    """Opens sandboxes for git. `present` has the allocation IDs of open sandboxes.

    `driver` is the driver `exec`, and `directory` is the parent of all allocation directories.
    `ids` yields new allocation IDs, and `seconds` is the time limit of an artifact.
    """

    def __init__(
        self,
        launcher: Launcher,
        driver: Driver,
        directory: str,
        ids: Iterator[str],
        present: set[str],
        *,
        seconds: float,
    ) -> None:
        self._launcher, self._driver, self._directory = launcher, driver, directory
        self._ids, self._present, self._seconds = ids, present, seconds

    @asynccontextmanager
    async def open(self, workshop: str) -> AsyncIterator["SandboxedGit"]:
        """Run a sandbox while the block runs; `workshop` is a directory of the daemon.

        Raises `HttpError` or `OSError`.
        """
        alloc_id = next(self._ids)
        directory = f"{self._directory}/{alloc_id}"
        self._present.add(alloc_id)
        try:
            task_layout = TaskDirLayout(task=_TASK, driver="exec", user="", is_seen=False)
            layout = AllocDirLayout(rooms=[task_layout], about=b"{}")
            for problem in (await self._launcher.lay_out(alloc_id, layout)).values():
                raise HttpError(f"git: the directory of its sandbox cannot be created: {problem}")
            attempt = Attempt(
                alloc_id=alloc_id,
                task=_TASK,
                number=0,
                directory=directory,
                config={"command": "sleep", "args": [str(int(self._seconds) + _MORE)]},
                env={"PATH": SEARCH_PATH},
                resources=Resources(cpu=1000, memory_mb=_MEMORY_MB),
                log=LogConfig(disabled=True),
            )
            try:
                (await self._driver.start(attempt)).release()
                leash = await self._open_leash(attempt)
            except StartFailed as error:
                raise HttpError(f"git: {error}") from error
            try:
                yield SandboxedGit(self._launcher, self._driver, attempt, workshop)
            finally:
                await leash.close()
        finally:
            with trio.CancelScope(shield=True):
                await self._remove(alloc_id, directory)
            self._present.discard(alloc_id)

    async def _open_leash(self, attempt: Attempt) -> ExecStream:
        """Wait until the sandbox runs, and open the session whose end terminates the sandbox.

        Raises `StartFailed`.
        """
        # A signal without effect, which is sent only to a main process inside its sandbox.
        probe = SendSignal(
            allocation=attempt.alloc_id,
            task=attempt.task,
            attempt=attempt.number,
            signal="SIGCONT",
            is_walled=True,
            to_shim=False,
        )
        with trio.move_on_after(_BEGINS_WITHIN):
            while not await self._launcher.signal(probe):  # noqa: ASYNC110  # nothing reports it
                await trio.sleep(_PACE)
        return await self._driver.open_session(attempt, _LEASH, tty=False)

    async def _remove(self, alloc_id: str, directory: str) -> None:
        try:
            await self._driver.destroy(alloc_id, directory)
            await self._launcher.remove(alloc_id)
        except OSError as error:  # the next daemon removes the sandbox
            _log.warning("the sandbox %s of git cannot be removed: %s", alloc_id, error)


class SandboxedGit:
    """Runs git in one sandbox."""

    path = SEARCH_PATH

    def __init__(self, launcher: Launcher, driver: Driver, attempt: Attempt, workshop: str) -> None:
        self._launcher, self._driver, self._attempt = launcher, driver, attempt
        self._archive = f"{workshop}/git.tar"
        directories = driver.task_dirs(attempt.directory, _TASK)
        self._files = TaskFiles(
            launcher=launcher, allocation=attempt.alloc_id, task=_TASK, places=directories
        )
        self.env = attempt.env
        self.home, self.tree, self._secrets = (
            directories.local,
            f"{directories.local}/tree",
            directories.secrets,
        )

    async def keep_key(self, content: bytes) -> str:
        """Store an SSH key, readable only by the user of the sandbox; return its path."""
        await self._files.write(self._files.own("secrets/key"), content, mode=0o600)
        return f"{self._secrets}/key"

    @asynccontextmanager
    async def run(self, words: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[GitProcess]:
        """Start a program in the sandbox and yield it for the block. Raises `HttpError`."""
        attempt = msgspec.structs.replace(self._attempt, env=env)
        try:
            session = await self._driver.open_session(attempt, words, tty=False)
        except StartFailed as error:
            raise HttpError(f"git: {error}") from error
        try:
            await session.end_input()
            yield session
        finally:
            await session.close()

    async def used(self, most: int) -> int:
        """Return the disk usage of the sandbox in bytes, as the launcher measures it."""
        del most
        return (await self._launcher.measure(self._attempt.alloc_id)).used

    async def deliver(self, tree: str, limits: ArchiveLimits) -> None:
        """Unpack the files of the clone into a directory.

        Raises `BadArchive`, `HttpError` or `OSError`.
        """
        most = limits.bytes + (limits.files + 1) * _MEMBER
        async with self.run([*_PACK, self.tree], self.env) as process:
            # A write to the page cache, which is shorter than a thread switch.
            with open(self._archive, "xb") as file:  # noqa: ASYNC230  # see above

                def is_too_much(chunk: bytes) -> bool:
                    file.write(chunk)
                    return file.tell() > most

                if await read_output(process, "stdout", is_too_much):
                    raise BadArchive(f"more than {most} bytes were packed by git's sandbox")
            if status := await process.wait():
                raise HttpError(f"git: tar ended with status {status}")
        # The archive also has the top directory.
        archive_limits = ArchiveLimits(bytes=limits.bytes, files=limits.files + 1)
        await trio.to_thread.run_sync(partial(_unpack, self._archive, tree, archive_limits))


def _unpack(archive: str, tree: str, limits: ArchiveLimits) -> None:
    os.mkdir(tree, 0o700)
    Unpacker(tree, limits, trio.from_thread.check_cancelled).unpack(archive, "tar", "")
    os.unlink(archive)
