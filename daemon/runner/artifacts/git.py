"""Cloning a repository that nobody vouches for, by the program git, within bounds.

What is downloaded is bounded by the size that any of git's files may have, what comes out of it by
counting its tree before it is checked out: a small repository may hold a tree without end. The
program connects to the address that it is given and follows nothing; what it says is kept only in
part.
"""

import base64
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import trio

from daemon.reach import Forbidden
from daemon.runner.artifacts.archive import BadArchive, Limits
from daemon.runner.artifacts.source import BadSource
from daemon.runner.http import HTTPFailed

_SSH = "ssh -o StrictHostKeyChecking=accept-new -o BatchMode=yes"
_KEPT = 4096  # bytes of what it says
_LONGEST = 64 * 1024  # bytes of a name with its folders
_BLOCK = 512  # bytes: the unit of a shell's bound
_BOUNDED = 'ulimit -f "$0" && exec "$@"'


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
        ]
        self._words = [program, *(word for one in settings for word in ("-c", one))]

    async def clone(self, url: str, target: str, ref: str, depth: str, limits: Limits) -> None:
        """Bring a revision of a repository into a new directory.

        Raises `HTTPFailed` or `BadArchive`.
        """
        words = ["clone", "--quiet", "--no-checkout"]
        if depth:
            words += ["--depth", depth, *(["--branch", ref] if ref else [])]
        most = limits.bytes // _BLOCK + 1
        await self._run([*words, "--", url, target], most)
        here = ["-C", target]
        revision = "HEAD" if depth or not ref else await self._revision(here, ref, most)
        tree = _Tree(limits)
        await self._run([*here, "ls-tree", "-r", "-l", "-z", revision], most, tree.is_enough)
        if tree.is_enough(b""):
            raise BadArchive(
                f"more than {limits.files} files or {limits.bytes} bytes are in the repository"
            )
        await self._run([*here, "checkout", "--quiet", "--detach", revision], most)

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
        self, words: Sequence[str], most: int, enough: Callable[[bytes], bool] | None = None
    ) -> None:
        """Run it to its end, or until enough was read. Raises `HTTPFailed` with what it said."""
        said = bytearray()

        def keep(piece: bytes) -> bool:
            said.extend(piece[: _KEPT - len(said)])
            return False

        async with trio.open_nursery() as nursery:
            start = partial(
                trio.run_process,
                ["/bin/sh", "-c", _BOUNDED, str(most), *self._words, *words],
                env=self.environment,
                check=False,
                stdin=b"",
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            process: trio.Process = await nursery.start(start)
            nursery.start_soon(_read, process.stderr, keep)
            if await _read(process.stdout, enough or (lambda _: False)):
                nursery.cancel_scope.cancel()
        if process.returncode and not nursery.cancel_scope.cancel_called:
            text = said.decode(errors="replace").strip()
            raise HTTPFailed(f"git: {text or f'it ended with status {process.returncode}'}")


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
