"""Cloning a repository that nobody vouches for, by the program git, within bounds.

What is downloaded is bounded by the size that any of git's files may have and, as a server may send
any number of them, by measuring them all from time to time; what comes out of it by counting its
tree before it is checked out: a small repository may hold a tree without end. What is checked out is
what was counted, changed by no attribute. The program's memory has a bound; it connects to the
address that it is given and follows nothing; what it says is kept only in part.
"""

import base64
import os
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec
import trio

from daemon.reach import Forbidden
from daemon.runner.artifacts.archive import MOST_MEMORY, BadArchive, Limits
from daemon.runner.artifacts.source import BadSource
from daemon.runner.disk import Measuring
from daemon.runner.http import HTTPFailed

_SSH = "ssh -o StrictHostKeyChecking=accept-new -o BatchMode=yes"
_KEPT = 4096  # bytes of what it says
_LONGEST = 64 * 1024  # bytes of a name with its folders
_BLOCK = 512  # bytes: the unit of a shell's bound
_KILOBYTE = 1024
_BOUNDED = 'ulimit -f "$0" && ulimit -d "$1" && shift && exec "$@"'
_PACE = 1.0  # seconds from one look at what was downloaded to the next
_PINS = (2, 37)  # the first git that knows http.curloptResolve; others ignore it and say nothing
# Nothing is recoded or filtered: a tree has the size that was counted. An encoding can only be
# unspecified, git refuses "-working-tree-encoding".
_ATTRIBUTES = "* -text -ident -filter !working-tree-encoding\n"


async def _nothing() -> bool:
    return False


class Git:
    """The program, for one repository at one address."""

    def __init__(
        self,
        workshop: str,
        at: tuple[str, int, str],
        key: str,
        verify: bool,
    ) -> None:
        """Prepare it; `at` is a host, a port and its address, `key` one for ssh in base64.

        Raises `BadSource` or `Forbidden`.
        """
        host, port, address = at
        ssh = f"{_SSH} -o HostName={address}"
        if key:
            ssh = f"{ssh} -i {_written(workshop, key)}"
        self.environment: Mapping[str, str] = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": workshop,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": "https:http:ssh",
            "GIT_SSH_COMMAND": ssh,
        }
        program = shutil.which("git", path=self.environment["PATH"])
        if program is None:
            raise Forbidden("the program git is missing on this node")
        settings = [
            f"http.curloptResolve={host}:{port}:{address}",
            "http.followRedirects=false",
            f"http.sslVerify={str(verify).lower()}",
            # Larger files are copied through, not held in memory; each thread would hold its own.
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
        limits: Limits,
        arrived: Callable[[int], None],
    ) -> None:
        """Bring a revision of a repository into a new directory.

        `arrived` is told from time to time how many bytes of it are there. Raises `HTTPFailed`, `BadArchive` or `Forbidden`.
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
            raise BadArchive(f"more than {limits.bytes} bytes come from the repository")
        here = ["-C", target]
        revision = "HEAD" if depth or not ref else await self._revision(here, ref, most)
        tree = _Tree(limits)
        if await self._run([*here, "ls-tree", "-r", "-l", "-z", revision], most, tree.is_enough):
            raise BadArchive(
                f"more than {limits.files} files or {limits.bytes} bytes are in the repository"
            )
        await trio.to_thread.run_sync(_keep_as_counted, target)
        await self._run([*here, "checkout", "--quiet", "--detach", revision], most)

    async def _check_version(self) -> None:
        """Raise `Forbidden` for a git that would ask by itself where a host is."""
        command = [self._words[0], "--version"]
        done = await trio.run_process(
            command, env=self.environment, check=False, capture_stdout=True
        )
        found = re.search(rb"(\d+)\.(\d+)", done.stdout)
        if found is None or (int(found[1]), int(found[2])) < _PINS:
            version = done.stdout.decode(errors="replace").strip() or "git of no known version"
            raise Forbidden(
                f"{version} on this node cannot be held to one address of a host:"
                f" a repository over http needs git {_PINS[0]}.{_PINS[1]} or newer"
            )

    async def _revision(self, here: Sequence[str], ref: str, most: int) -> str:
        """Return a revision that a name stands for: of a branch, a tag or itself."""
        try:
            await self._run(
                [*here, "rev-parse", "--quiet", "--verify", f"origin/{ref}^{{commit}}"], most
            )
        except HTTPFailed:
            return ref
        return f"origin/{ref}"

    async def _run(
        self,
        words: Sequence[str],
        most: int,
        enough: Callable[[bytes], bool] = lambda _: False,
        growing: Callable[[], Awaitable[bool]] = _nothing,
    ) -> bool:
        """Run it to its end, or until enough was read or has grown; tell whether it was enough.

        Raises `HTTPFailed` with what it said.
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
            raise HTTPFailed(f"git: {text or f'it ended with status {process.returncode}'}")
        return False


async def _watch(
    process: trio.Process, growing: Callable[[], Awaitable[bool]], scope: trio.CancelScope
) -> None:
    """Look from time to time, and at its end, whether it has grown too large; if so, cancel."""
    while process.returncode is None:
        with trio.move_on_after(_PACE):
            await process.wait()
        if await growing():
            scope.cancel()
            return


def _size(folder: str, most: int) -> int:
    """Return the bytes that all below a folder takes; it is not looked on when they are too many."""
    measuring = Measuring(folder)
    while measuring.used <= most and not measuring.step():
        pass
    return measuring.used


def _keep_as_counted(repository: str) -> None:
    os.makedirs(f"{repository}/.git/info", exist_ok=True)
    with open(f"{repository}/.git/info/attributes", "w", encoding="utf-8") as file:
        file.write(_ATTRIBUTES)


async def _read(stream: trio.abc.ReceiveStream | None, enough: Callable[[bytes], bool]) -> bool:
    """Read to the end, or until it is enough; tell which."""
    assert stream is not None  # noqa: S101  # it was asked for
    async with stream:
        async for piece in stream:
            if enough(bytes(piece)):
                return True
    return False


class _Tree(msgspec.Struct):
    """What is counted of a tree: lines of mode, type, id and size, a tab and a name, each with a zero."""

    limits: Limits
    files: int = 0
    size: int = 0
    rest: bytes = b""

    def is_enough(self, piece: bytes) -> bool:
        """Count what a piece of the list tells; tell whether it is more than may be."""
        *lines, self.rest = (self.rest + piece).split(b"\0")
        for line in lines:
            told = line.partition(b"\t")[0].split()[-1]
            self.files += 1
            self.size += int(told) if told.isdigit() else 0  # a submodule has none
        return (
            self.files > self.limits.files
            or self.size > self.limits.bytes
            or len(self.rest) > _LONGEST
        )


def _written(workshop: str, key: str) -> str:
    """Return the file of a key, which only we can read. Raises `BadSource`."""
    path = f"{workshop}/key"
    try:
        content = base64.b64decode(key, validate=True)
    except ValueError as error:
        raise BadSource(f"sshkey is not in base64: {error}") from error
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return path
