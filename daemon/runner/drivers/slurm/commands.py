"""Run Slurm's client programs with a timeout.

If the controller is down, each of them hangs for nine seconds and then fails (facts, Slurm, section
5), so calls time out after twelve. No process outlives its call.
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


class SlurmCommandFailed(StewardError):
    """A program failed or did not answer; `unsure` if the operation may have succeeded."""

    def __init__(self, message: str, *, unsure: bool = False) -> None:
        super().__init__(message)
        self.unsure = unsure


class SlurmCommands(msgspec.Struct, frozen=True, kw_only=True):
    """The search path and environment of the programs.

    The environment is closed: the daemon's own variables must not reach jobs.
    """

    path: str
    config: str = ""  # path of the cluster's configuration file, if not the default
    seconds: float = SECONDS
    most: int = MOST  # bytes of output

    def environment(self) -> dict[str, str]:
        """Return the environment of a program."""
        env = {"PATH": self.path, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        if self.config:
            env["SLURM_CONF"] = self.config
        return env

    def find(self, program: str) -> str | None:
        """Return the path of a program, or None."""
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
        """Return the output of a program. Raises `SlurmCommandFailed` with its error message.

        `env` adds to the environment, which other users cannot read, unlike arguments.
        """
        path = self.find(program)
        if path is None:
            raise SlurmCommandFailed(
                f"{program} is not in {self.path}: install the cluster's client programs"
            )
        with trio.move_on_after(self.seconds):
            given = {**self.environment(), **(env or {})}
            return await _said(program, [path, *words], stdin, given, self.most)
        raise SlurmCommandFailed(f"{program} did not answer within {self.seconds:g} s", unsure=True)


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
        except OSError as error:  # a shortage on this host
            trouble = error
        if process is not None:
            for stream, found in ((process.stdout, out), (process.stderr, err)):
                if stream is not None:
                    nursery.start_soon(_read, stream, found, most, nursery.cancel_scope)
    if process is None:
        raise SlurmCommandFailed(
            f"{program} cannot be started: {trouble}", unsure=True
        ) from trouble
    if max(len(out), len(err)) > most:
        raise SlurmCommandFailed(f"{program} printed more than {most} bytes", unsure=True)
    if process.returncode:
        # scontrol prints errors to standard output.
        said = err.strip() or out.strip()
        text = said.decode(errors="replace") or f"status {process.returncode}"
        raise SlurmCommandFailed(
            text.removeprefix(f"{program}: error: "), unsure=process.returncode < 0
        )
    return out.decode(errors="replace")


async def _read(
    stream: trio.abc.ReceiveStream, found: bytearray, most: int, scope: trio.CancelScope
) -> None:
    """Read a stream to its end; cancel the call when it exceeds the limit."""
    async with stream:
        while len(found) <= most and (data := await stream.receive_some()):
            found += data
    if len(found) > most:
        scope.cancel()


def rows(text: str) -> list[Sequence[str]]:
    """Split each line of output at `|`."""
    return [line.split("|") for line in text.splitlines() if line]
