"""Clone an untrusted repository with the program git, within limits.

A server may send any number of files. Therefore each file has a size limit, and the total is
measured periodically during the download. A small repository may hold a huge tree, so the tree is
counted before it is checked out. The checkout writes exactly the counted bytes: git attributes,
which could convert files, are switched off. The program has a memory limit, connects only to the
given address and follows no redirects. Only a part of its output is stored.

`GitPlace` is the place where git runs: the sandbox of `git_sandbox.py`, or a directory of the
daemon.
"""

import base64
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Protocol

import msgspec
import trio

from daemon.launcher.disk_usage import DiskUsageScan
from daemon.net.egress_policy import EgressDenied
from daemon.net.http_client import HttpError
from daemon.runner.core.safe_open import open_directory
from daemon.runner.setup.artifacts.archive import MOST_MEMORY, ArchiveLimits, BadArchive
from daemon.runner.setup.artifacts.source import InvalidSource

_SSH = ("ssh", "-o", "StrictHostKeyChecking=accept-new", "-o", "BatchMode=yes")
_KEPT = 4096  # bytes of git's output
_LONGEST = 64 * 1024  # bytes of a path
_BLOCK = 512  # bytes: the unit of `ulimit -f`
_KILOBYTE = 1024
_CHUNK = 32 * 1024  # bytes per read
_BOUNDED = 'ulimit -f "$0" && ulimit -d "$1" && shift && exec "$@"'
# An entry in the output of `git ls-tree -l`.
_ENTRY = re.compile(rb"[0-7]+ [a-z]+ [0-9a-f]+ +(-|[0-9]{1,18})\t")
_PACE = 1.0  # seconds between two measurements of the download
_PINS = (2, 37)  # the first git with http.curloptResolve; older versions ignore it silently
# No file is recoded or filtered, so that the checked-out tree has the counted size. An encoding can
# only be unset: git rejects "-working-tree-encoding".
_ATTRIBUTES = "* -text -ident -filter !working-tree-encoding"
_KEEP_AS_COUNTED = 'mkdir -p "$0/.git/info" && echo "$1" >"$0/.git/info/attributes"'


async def _nothing() -> bool:
    return False


class GitProcess(Protocol):
    """A running program of a clone."""

    async def read(self, output: str) -> bytes:
        """Return the next bytes of `stdout` or `stderr`; empty at the end."""
        ...

    async def wait(self) -> int:
        """Return the exit status."""
        ...


class GitPlace(Protocol):
    """The place where git runs and writes, with paths as git sees them."""

    @property
    def home(self) -> str:
        """Return the directory for git's own files."""
        ...

    @property
    def tree(self) -> str:
        """Return the directory of the clone, which does not exist yet."""
        ...

    @property
    def path(self) -> str:
        """Return the search path of programs."""
        ...

    def run(
        self, words: Sequence[str], env: Mapping[str, str]
    ) -> AbstractAsyncContextManager[GitProcess]:
        """Start a program and yield it; kill it at the end of the block. Raises `HttpError`."""
        ...

    async def used(self, most: int) -> int:
        """Return the size of the clone so far in bytes.

        Counting may stop as soon as the size exceeds `most`.
        """
        ...


class LocalGit:
    """Git as a child of the daemon, below a directory that only the daemon can access."""

    def __init__(self, workshop: str, tree: str) -> None:
        self.home, self.tree = workshop, tree
        self.path = os.environ.get("PATH", "/usr/bin:/bin")

    async def keep_key(self, content: bytes) -> str:
        """Store an SSH key, readable only by the daemon; return its path."""
        path = f"{self.home}/key"
        # A write to the page cache, which is shorter than a thread switch.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        return path

    @asynccontextmanager
    async def run(self, words: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[GitProcess]:
        """Start a program and yield it; kill its process group at the end of the block."""
        process = await trio.lowlevel.open_process(
            list(words),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            yield _LocalProcess(process)
        finally:
            with suppress(ProcessLookupError):  # the whole group has ended
                os.killpg(process.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await process.wait()
                for stream in (process.stdout, process.stderr):
                    assert stream is not None  # noqa: S101  # created with a pipe
                    await stream.aclose()

    async def used(self, most: int) -> int:
        """Return the size of the clone so far in bytes.

        Counting stops as soon as the size exceeds `most`.
        """
        return await trio.to_thread.run_sync(_size, self.tree, most)

    async def deliver(self, tree: str, limits: ArchiveLimits) -> None:
        """Do nothing: the clone is in its directory already."""
        del tree, limits


class _LocalProcess:
    def __init__(self, process: trio.Process) -> None:
        self._process = process

    async def read(self, output: str) -> bytes:
        stream = self._process.stdout if output == "stdout" else self._process.stderr
        assert stream is not None  # noqa: S101  # created with a pipe
        return bytes(await stream.receive_some(_CHUNK))

    async def wait(self) -> int:
        return await self._process.wait()


class GitClient:
    """Runs git for one repository, with connections to one pinned address only."""

    def __init__(
        self, location: GitPlace, server: tuple[str, int, str], key_file: str, *, verify: bool
    ) -> None:
        """Prepare the clone of a repository.

        `server` is a host name, a port, and the IP address of the host. `key_file` is the path of
        an SSH key, or empty. Raises `EgressDenied`.
        """
        host, port, address = server
        self._location = location
        ssh_command = [*_SSH, "-o", f"HostName={address}"]
        if key_file:
            ssh_command += ["-i", key_file]
        self.environment: Mapping[str, str] = {
            "PATH": location.path,
            "HOME": location.home,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": "https:http:ssh",
            "GIT_SSH_COMMAND": shlex.join(ssh_command),  # git passes it to a shell
        }
        program = shutil.which("git", path=location.path)
        if program is None:
            raise EgressDenied(f"git is not installed on this node: it is not in {location.path}")
        settings = [
            f"http.curloptResolve={host}:{port}:{address}",
            "http.followRedirects=false",
            f"http.sslVerify={str(verify).lower()}",
            # Git streams larger files instead of holding them in memory. With one thread, it holds
            # fewer of the smaller files at the same time.
            "core.bigFileThreshold=16m",
            "pack.threads=1",
        ]
        self._words = [program, *(word for setting in settings for word in ("-c", setting))]

    async def clone(
        self,
        url: str,
        ref: str,
        depth: str,
        limits: ArchiveLimits,
        arrived: Callable[[int], None],
    ) -> None:
        """Clone a revision of a repository into the place's directory.

        `arrived` is called periodically with the number of bytes downloaded. Raises `HttpError`,
        `BadArchive` or `EgressDenied`.
        """
        target = self._location.tree
        if url.startswith("http"):
            await self._check_version()
        arguments = ["clone", "--quiet", "--no-checkout"]
        if depth:
            arguments += ["--depth", depth, *(["--branch", ref] if ref else [])]
        most = limits.bytes // _BLOCK + 1

        async def is_too_much() -> bool:
            used = await self._location.used(limits.bytes)
            arrived(used)
            return used > limits.bytes

        if await self._git([*arguments, "--", url, target], most, growing=is_too_much):
            raise BadArchive(f"more than {limits.bytes} bytes were downloaded from the repository")
        location = ["-C", target]
        revision = "HEAD" if depth or not ref else await self._revision(location, ref, most)
        tree = _Tree(limits)
        if await self._git(
            [*location, "ls-tree", "-r", "-l", "-z", revision], most, tree.is_enough
        ):
            raise BadArchive(
                f"the repository has more than {limits.files} files or {limits.bytes} bytes"
            )
        await self._run(["/bin/sh", "-c", _KEEP_AS_COUNTED, target, _ATTRIBUTES])
        await self._git([*location, "checkout", "--quiet", "--detach", revision], most)

    async def _check_version(self) -> None:
        """Raise `EgressDenied` if the installed git would resolve host names itself."""
        output = bytearray()

        def keep(chunk: bytes) -> bool:
            output.extend(chunk)
            return len(output) > _KEPT

        await self._run([self._words[0], "--version"], keep)
        match = re.search(rb"(?<!\d)(\d++)\.(\d++)", output)
        if match is None or (int(match[1]), int(match[2])) < _PINS:
            version = output.decode(errors="replace").strip() or "git of an unknown version"
            raise EgressDenied(
                f"{version} on this node cannot be pinned to one address of a host:"
                f" a repository over http needs git {_PINS[0]}.{_PINS[1]} or newer"
            )

    async def _revision(self, location: Sequence[str], ref: str, most: int) -> str:
        """Return the revision of a branch, a tag or a commit ID."""
        try:
            await self._git(
                [*location, "rev-parse", "--quiet", "--verify", f"origin/{ref}^{{commit}}"], most
            )
        except HttpError:
            return ref
        return f"origin/{ref}"

    async def _git(
        self,
        words: Sequence[str],
        most: int,
        enough: Callable[[bytes], bool] = lambda _: False,
        growing: Callable[[], Awaitable[bool]] = _nothing,
    ) -> bool:
        """Run git as `_run` does, with limits on its memory and its files.

        No file may exceed `most` blocks of 512 bytes.
        """
        bounds = (str(most), str(MOST_MEMORY // _KILOBYTE))
        command = ["/bin/sh", "-c", _BOUNDED, *bounds, *self._words, *words]
        return await self._run(command, enough, growing)

    async def _run(
        self,
        command: Sequence[str],
        enough: Callable[[bytes], bool] = lambda _: False,
        growing: Callable[[], Awaitable[bool]] = _nothing,
    ) -> bool:
        """Run a program until it ends or a callback stops it; return whether a callback stopped it.

        `enough` checks the output, and `growing` checks the downloaded files. Raises `HttpError`
        with the output.
        """
        output = bytearray()

        def keep(chunk: bytes) -> bool:
            output.extend(chunk[: _KEPT - len(output)])
            return False

        async with self._location.run(command, self.environment) as process:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(read_output, process, "stderr", keep)
                    nursery.start_soon(_watch, process, growing, nursery.cancel_scope)
                    if await read_output(process, "stdout", enough):
                        nursery.cancel_scope.cancel()
            except ExceptionGroup as group:  # the first error has cancelled the other tasks
                raise group.exceptions[0] from None
            if nursery.cancel_scope.cancel_called:
                return True
            status = await process.wait()
        if status:
            text = output.decode(errors="replace").strip()
            raise HttpError(f"git: {text or f'it ended with status {status}'}")
        return False


async def _watch(
    process: GitProcess, growing: Callable[[], Awaitable[bool]], scope: trio.CancelScope
) -> None:
    """Cancel `scope` if `growing` reports that the download is too large.

    `growing` is called periodically, and once after the process has ended.
    """
    has_ended = False
    while not has_ended:
        with trio.move_on_after(_PACE):
            await process.wait()
            has_ended = True
        if await growing():
            scope.cancel()
            return


def _size(folder: str, most: int) -> int:
    """Return the total size of the files below a folder in bytes.

    Counting stops as soon as the size exceeds `most`.
    """
    try:
        top = open_directory(folder)
    except FileNotFoundError:  # git has not created the folder yet
        return 0
    try:
        measuring = DiskUsageScan(top)
        while measuring.used <= most and not measuring.step():
            pass
        return measuring.used
    finally:
        os.close(top)


async def read_output(process: GitProcess, output: str, enough: Callable[[bytes], bool]) -> bool:
    """Read an output to its end or until `enough` returns true; return whether `enough` did."""
    while chunk := await process.read(output):
        if enough(chunk):
            return True
    return False


def read_key(text: str) -> bytes:
    """Return an SSH key from base64. Raises `InvalidSource`."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidSource(f"sshkey is not valid base64: {error}") from error


class _Tree(msgspec.Struct):
    """Counts the files and bytes in the output of `git ls-tree`; `rest` is an incomplete entry.

    Each entry is mode, type, ID and size, a tab and a name, and ends with a zero byte.
    """

    limits: ArchiveLimits
    files: int = 0
    size: int = 0
    rest: bytes = b""

    def is_enough(self, chunk: bytes) -> bool:
        """Count a chunk of the list; return whether a limit is exceeded.

        Raises `BadArchive` for an entry in an unexpected format.
        """
        *lines, self.rest = (self.rest + chunk).split(b"\0")
        for line in lines:
            if (match := _ENTRY.match(line)) is None:
                raise BadArchive("git listed a file in an unexpected format")
            self.files += 1
            self.size += int(match[1]) if match[1].isdigit() else 0  # a submodule has no size
        return (
            self.files > self.limits.files
            or self.size > self.limits.bytes
            or len(self.rest) > _LONGEST
        )
