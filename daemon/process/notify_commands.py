"""Run notification commands through the launcher, as the daemon's user.

The daemon sends the launcher the name of the command and the message. The launcher's policy has the
arguments of each command.
"""

from collections.abc import Sequence

import trio

from daemon.launcher.client import Launcher
from daemon.launcher.messages import ProgramCommand
from daemon.launcher.programs import NOTIFY
from daemon.notify.channels import KEPT, DeliveryFailed, outcome
from daemon.runner.drivers.local_exec import PassedSession

_ENDS_WITHIN = 1.0  # seconds to wait for output of left-over children


async def run_by_launcher(launcher: Launcher, name: str, words: Sequence[str], body: bytes) -> str:
    """Run a command and write `body` to its standard input; return its exit status as text.

    `words` is not used. The launcher kills the command's process group at the end of the delivery
    attempt. Raises `DeliveryFailed`.
    """
    del words  # the launcher has its own words of the command
    try:
        command = ProgramCommand(program=NOTIFY, user="", args=[name])
        number, ends = await launcher.start_program(command, body)
    except (OSError, ValueError) as error:
        raise DeliveryFailed(f"the command {name} cannot be run: {error}") from error
    session, written = PassedSession(launcher, number, *ends), bytearray()

    async def keep(output: str) -> None:
        while chunk := await session.read(output):
            written.extend(chunk[: max(KEPT - len(written), 0)])

    try:
        async with trio.open_nursery() as nursery:
            for output in session.outputs:
                nursery.start_soon(keep, output)
            status = await session.wait()
            nursery.cancel_scope.deadline = trio.current_time() + _ENDS_WITHIN
    finally:
        await session.close()
    return outcome(name, written, status)
