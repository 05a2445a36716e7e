"""The cluster's own programs, as children of the daemon: text in, text out, and never for long.

Where the controller is away each of them hangs for nine seconds and then fails (facts, Slurm,
section 5), so a call ends after twelve; nothing of a call outlives it.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import trio

from storage.errors import StewardError

PROGRAMS = ("sbatch", "squeue", "scancel", "srun", "sinfo", "scontrol")
SECONDS = 12.0
MOST = 64 * 1024 * 1024  # bytes: half a million lines of squeue


class ToolFailed(StewardError):
    """A program of the cluster said no, or nothing; `unsure` when it may have done its work."""

    def __init__(self, message: str, *, unsure: bool = False) -> None:
        super().__init__(message)
        self.unsure = unsure


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """Where the programs are found, and what they get as their environment besides the path.

    The environment is closed: what the daemon has in its own must not reach jobs.
    """

    path: str
    config: str = ""  # the cluster's configuration file, where that is not the usual one
    seconds: float = SECONDS
    most: int = MOST  # bytes that a program may say

    def environment(self) -> dict[str, str]:
        """Return what a program gets."""
        env = {"PATH": self.path, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        if self.config:
            env["SLURM_CONF"] = self.config
        return env

    def find(self, program: str) -> str | None:
        """Return the path of a program; None when it is nowhere."""
        for folder in self.path.split(os.pathsep):
            candidate = os.path.join(folder, program)
            if os.path.isabs(candidate) and os.access(candidate, os.X_OK):
                return candidate
        return None

    async def run(
        self,
        program: str,
        *words: str,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Return what a program printed. Raises `ToolFailed` with what it said instead.

        `env` adds to the environment, which no other user can read, unlike arguments.
        """
        path = self.find(program)
        if path is None:
            raise ToolFailed(
                f"{program} is not in {self.path}: install the cluster's client programs"
            )
        with trio.move_on_after(self.seconds):
            given = {**self.environment(), **(env or {})}
            return await _said(program, [path, *words], stdin, given, self.most)
        raise ToolFailed(f"{program} did not answer within {self.seconds:g} s", unsure=True)


async def _said(
    program: str, line: list[str], stdin: bytes, env: Mapping[str, str], most: int
) -> str:
    out, err = bytearray(), bytearray()
    process: trio.Process | None = None
    trouble: OSError | None = None
    async with trio.open_nursery() as nursery:
        try:
            process = await nursery.start(
                partial(
                    trio.run_process,
                    line,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    check=False,
                    env=env,
                    start_new_session=True,
                )
            )
        except OSError as error:  # of what this machine lacks at the moment
            trouble = error
        if process is not None:
            for stream, found in ((process.stdout, out), (process.stderr, err)):
                if stream is not None:
                    nursery.start_soon(_read, stream, found, most, nursery.cancel_scope)
    if process is None:
        raise ToolFailed(f"{program} cannot be started: {trouble}", unsure=True) from trouble
    if max(len(out), len(err)) > most:
        raise ToolFailed(f"{program} said more than {most} bytes", unsure=True)
    if process.returncode:
        # scontrol complains to standard output.
        said = err.strip() or out.strip()
        text = said.decode(errors="replace") or f"status {process.returncode}"
        raise ToolFailed(text.removeprefix(f"{program}: error: "), unsure=process.returncode < 0)
    return out.decode(errors="replace")


async def _read(
    stream: trio.abc.ReceiveStream, found: bytearray, most: int, scope: trio.CancelScope
) -> None:
    """Read all that a stream has; when that is more than it may be, end the whole."""
    async with stream:
        while len(found) <= most and (data := await stream.receive_some()):
            found += data
    if len(found) > most:
        scope.cancel()


def rows(text: str) -> list[Sequence[str]]:
    """Return the fields of each line that a program printed, which `|` parts."""
    return [line.split("|") for line in text.splitlines() if line]
