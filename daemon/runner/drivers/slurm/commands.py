"""Run Slurm's client programs with a timeout, through the launcher.

If the controller is down, each program hangs for nine seconds and then fails. So calls time out
after twelve seconds. No process outlives its call.
"""

from collections.abc import Mapping, Sequence

import msgspec
import trio

from daemon.launcher.channel import Refusal
from daemon.launcher.client import Launcher
from daemon.launcher.messages import ProgramCommand
from daemon.runner.core.launcher_policy import find_program
from daemon.runner.drivers.local_exec import PassedSession
from storage.errors import StewardError

SECONDS = 12.0
MOST = 64 * 1024 * 1024  # bytes: half a million lines of squeue
_STARTER = "setpriv: "  # prefix of error messages of `setpriv`
_SIGNALLED = range(129, 193)  # exit statuses of a program that a signal ended


class SlurmCommandFailed(StewardError):
    """A program failed or did not answer. `unsure` means that the operation may have succeeded."""

    def __init__(self, message: str, *, unsure: bool = False) -> None:
        super().__init__(message)
        self.unsure = unsure


class SlurmCommands(msgspec.Struct, frozen=True, kw_only=True):
    """Runs the client programs of a cluster through the launcher.

    `path` is the search path, which does not change while the daemon runs. The programs do not
    inherit the daemon's own variables, because these must not reach jobs.
    """

    path: str
    launcher: Launcher
    config: str = ""  # path of the cluster's configuration file, if not the default
    seconds: float = SECONDS
    most: int = MOST  # bytes of output

    def find(self, program: str) -> str | None:
        """Return the path of a program, or None."""
        return find_program(program, self.path)

    async def run(
        self,
        program: str,
        *words: str,
        user: str = "",
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Return the output of a program. Raises `SlurmCommandFailed` with its error message.

        The program runs as `user`, which is a name or an ID; if `user` is empty, it runs as the
        daemon's user. `env` has variables for a job. Other users can read the arguments of a
        program, but not its variables.
        """
        if self.find(program) is None:
            raise SlurmCommandFailed(
                f"{program} is not in {self.path}: install the cluster's client programs"
            )
        with trio.move_on_after(self.seconds):
            return await self._output_of(self.order(program, *words, user=user, env=env), stdin)
        raise SlurmCommandFailed(f"{program} did not answer within {self.seconds:g} s", unsure=True)

    def order(
        self, program: str, *words: str, user: str = "", env: Mapping[str, str] | None = None
    ) -> ProgramCommand:
        """Return the command for the launcher.

        Raises `SlurmCommandFailed` if an argument is too long.
        """
        # In the order of the fields of `ProgramCommand`.
        fields = [program, user, words, self.config, dict(env or {})]
        try:
            return msgspec.convert(fields, ProgramCommand)
        except msgspec.ValidationError as error:
            raise SlurmCommandFailed(
                f"{program} cannot be called with these arguments: {error}"
            ) from error

    async def _output_of(self, program_command: ProgramCommand, stdin: bytes) -> str:
        try:
            number, ends = await self.launcher.start_program(program_command, stdin)
        except Refusal as error:
            raise SlurmCommandFailed(
                f"{program_command.program} cannot be started: {error}"
            ) from error
        except (OSError, ValueError) as error:  # a shortage on this host
            raise SlurmCommandFailed(
                f"{program_command.program} cannot be started: {error}", unsure=True
            ) from error
        out, err = bytearray(), bytearray()
        session = PassedSession(self.launcher, number, *ends)
        try:
            async with trio.open_nursery() as nursery:
                for name, received in (("stdout", out), ("stderr", err)):
                    nursery.start_soon(
                        _read, session, name, received, self.most, nursery.cancel_scope
                    )
            status = 0 if max(len(out), len(err)) > self.most else await session.wait()
        finally:
            await session.close()
        if max(len(out), len(err)) > self.most:
            text = f"{program_command.program} printed more than {self.most} bytes"
            raise SlurmCommandFailed(text, unsure=True)
        if status:
            # scontrol prints errors to standard output.
            message = err.strip() or out.strip()
            text = message.decode(errors="replace") or f"status {status}"
            if text.startswith(_STARTER):
                raise SlurmCommandFailed(
                    f"{program_command.program} cannot be started: {text.removeprefix(_STARTER)}",
                    unsure=True,
                )
            raise SlurmCommandFailed(
                text.removeprefix(f"{program_command.program}: error: "),
                unsure=status in _SIGNALLED,
            )
        return out.decode(errors="replace")


async def _read(
    session: PassedSession,
    output: str,
    output_so_far: bytearray,
    most: int,
    scope: trio.CancelScope,
) -> None:
    """Read a stream to its end; if it has more than `most` bytes, cancel `scope`."""
    while len(output_so_far) <= most and (data := await session.read(output)):
        output_so_far += data
    if len(output_so_far) > most:
        scope.cancel()


def rows(text: str) -> list[Sequence[str]]:
    """Split each line of output at `|`."""
    return [line.split("|") for line in text.splitlines() if line]
