"""Clone an untrusted repository with the program git, within limits.

A server may send any number of files. Therefore each file has a size limit, and the total is
measured periodically during the download. A small repository may hold a huge tree, so the tree is
counted before it is checked out. The checkout writes exactly the counted files, because attributes
cannot change it. The program has a memory limit, connects only to the given address and follows no
redirects. Only a part of its output is stored.
"""

import base64
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

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
_BOUNDED = 'ulimit -f "$0" && ulimit -d "$1" && shift && exec "$@"'
_PACE = 1.0  # seconds between two measurements of the download
_PINS = (2, 37)  # the first git with http.curloptResolve; older versions ignore it silently
# No file is recoded or filtered, so that the checked-out tree has the counted size. An encoding can
# only be unset: git rejects "-working-tree-encoding".
_ATTRIBUTES = "* -text -ident -filter !working-tree-encoding\n"


async def _nothing() -> bool:
    return False


class GitClient:
    """The program git for one repository at one address."""

    def __init__(
        self,
        workshop: str,
        at: tuple[str, int, str],
        key: str,
        verify: bool,
    ) -> None:
        """Prepare the clone of a repository.

        `at` is a host, a port and its address; `key` is an SSH key in base64. Raises `InvalidSource` or
        `EgressDenied`.
        """
        host, port, address = at
        words = [*_SSH, "-o", f"HostName={address}"]
        if key:
            words += ["-i", _written(workshop, key)]
        self.environment: Mapping[str, str] = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": workshop,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": "https:http:ssh",
            "GIT_SSH_COMMAND": shlex.join(words),  # git passes it to a shell
        }
        program = shutil.which("git", path=self.environment["PATH"])
        if program is None:
            raise EgressDenied("git is not installed on this node")
        settings = [
            f"http.curloptResolve={host}:{port}:{address}",
            "http.followRedirects=false",
            f"http.sslVerify={str(verify).lower()}",
            # Larger files are streamed instead of held in memory, and one thread limits the number
            # of those held.
            "core.bigFileThreshold=16m",
            "pack.threads=1",
        ]
        self._words = [program, *(word for one in settings for word in ("-c", one))]

    async def clone(
        self,
        url: str,
        target: str,
        ref: str,
        depth: str,
        limits: ArchiveLimits,
        arrived: Callable[[int], None],
    ) -> None:
        """Clone a revision of a repository into a new directory.

        `arrived` is called periodically with the number of bytes downloaded. Raises `HttpError`,
        `BadArchive` or `EgressDenied`.
        """
        if url.startswith("http"):
            await self._check_version()
        words = ["clone", "--quiet", "--no-checkout"]
        if depth:
            words += ["--depth", depth, *(["--branch", ref] if ref else [])]
        most = limits.bytes // _BLOCK + 1

        async def is_too_much() -> bool:
            used = await trio.to_thread.run_sync(_size, target, limits.bytes)
            arrived(used)
            return used > limits.bytes

        if await self._run([*words, "--", url, target], most, growing=is_too_much):
            raise BadArchive(f"more than {limits.bytes} bytes were downloaded from the repository")
        here = ["-C", target]
        revision = "HEAD" if depth or not ref else await self._revision(here, ref, most)
        tree = _Tree(limits)
        if await self._run([*here, "ls-tree", "-r", "-l", "-z", revision], most, tree.is_enough):
            raise BadArchive(
                f"more than {limits.files} files or {limits.bytes} bytes in the repository"
            )
        await trio.to_thread.run_sync(_keep_as_counted, target)
        await self._run([*here, "checkout", "--quiet", "--detach", revision], most)

    async def _check_version(self) -> None:
        """Raise `EgressDenied` for a git that resolves host names itself."""
        command = [self._words[0], "--version"]
        done = await trio.run_process(
            command, env=self.environment, check=False, capture_stdout=True
        )
        found = re.search(rb"(\d+)\.(\d+)", done.stdout)
        if found is None or (int(found[1]), int(found[2])) < _PINS:
            version = done.stdout.decode(errors="replace").strip() or "git of no known version"
            raise EgressDenied(
                f"{version} on this node cannot be pinned to one address of a host:"
                f" a repository over http needs git {_PINS[0]}.{_PINS[1]} or newer"
            )

    async def _revision(self, here: Sequence[str], ref: str, most: int) -> str:
        """Return the revision of a branch, a tag or a commit ID."""
        try:
            await self._run(
                [*here, "rev-parse", "--quiet", "--verify", f"origin/{ref}^{{commit}}"], most
            )
        except HttpError:
            return ref
        return f"origin/{ref}"

    async def _run(
        self,
        words: Sequence[str],
        most: int,
        enough: Callable[[bytes], bool] = lambda _: False,
        growing: Callable[[], Awaitable[bool]] = _nothing,
    ) -> bool:
        """Run git until it ends or a callback stops it; return whether it was stopped.

        `enough` examines the output, `growing` the files. Raises `HttpError` with git's output.
        """
        said = bytearray()

        def keep(piece: bytes) -> bool:
            said.extend(piece[: _KEPT - len(said)])
            return False

        bounds = (str(most), str(MOST_MEMORY // _KILOBYTE))
        async with trio.open_nursery() as nursery:
            start = partial(
                trio.run_process,
                ["/bin/sh", "-c", _BOUNDED, *bounds, *self._words, *words],
                env=self.environment,
                check=False,
                stdin=b"",
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            process: trio.Process = await nursery.start(start)
            nursery.start_soon(_read, process.stderr, keep)
            nursery.start_soon(_watch, process, growing, nursery.cancel_scope)
            if await _read(process.stdout, enough):
                nursery.cancel_scope.cancel()
        if nursery.cancel_scope.cancel_called:
            return True
        if process.returncode:
            text = said.decode(errors="replace").strip()
            raise HttpError(f"git: {text or f'it ended with status {process.returncode}'}")
        return False


async def _watch(
    process: trio.Process, growing: Callable[[], Awaitable[bool]], scope: trio.CancelScope
) -> None:
    """Cancel the scope when the download grows too large, checked periodically and at the end."""
    while process.returncode is None:
        with trio.move_on_after(_PACE):
            await process.wait()
        if await growing():
            scope.cancel()
            return


def _size(folder: str, most: int) -> int:
    """Return the total size of the files below a folder in bytes.

    Counting stops as soon as the limit is exceeded.
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


def _keep_as_counted(repository: str) -> None:
    os.makedirs(f"{repository}/.git/info", exist_ok=True)
    with open(f"{repository}/.git/info/attributes", "w", encoding="utf-8") as file:
        file.write(_ATTRIBUTES)


async def _read(stream: trio.abc.ReceiveStream | None, enough: Callable[[bytes], bool]) -> bool:
    """Read to the end, or until `enough` returns true; return the latter."""
    assert stream is not None  # noqa: S101  # created with a pipe
    async with stream:
        async for piece in stream:
            if enough(bytes(piece)):
                return True
    return False


class _Tree(msgspec.Struct):
    """A counter for the output of `git ls-tree`.

    Each entry is mode, type, ID and size, a tab and a name, and ends with a zero byte.
    """

    limits: ArchiveLimits
    files: int = 0
    size: int = 0
    rest: bytes = b""

    def is_enough(self, piece: bytes) -> bool:
        """Count a piece of the list; return whether a limit is exceeded."""
        *lines, self.rest = (self.rest + piece).split(b"\0")
        for line in lines:
            told = line.partition(b"\t")[0].split()[-1]
            self.files += 1
            self.size += int(told) if told.isdigit() else 0  # a submodule has no size
        return (
            self.files > self.limits.files
            or self.size > self.limits.bytes
            or len(self.rest) > _LONGEST
        )


def _written(workshop: str, key: str) -> str:
    """Return the file of a key, readable only by the daemon. Raises `InvalidSource`."""
    path = f"{workshop}/key"
    try:
        content = base64.b64decode(key, validate=True)
    except ValueError as error:
        raise InvalidSource(f"sshkey is not in base64: {error}") from error
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return path
