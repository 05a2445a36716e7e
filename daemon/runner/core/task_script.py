"""Run a short command inside a task, with a timeout."""

import math

import msgspec
import trio

from daemon.runner.core.driver import ExecStream

_MOST_KEPT = 4096  # bytes of output
_LAST_WORDS = 0.2  # seconds to read the remaining output of an ended command
_TOO_LONG = 124  # exit status of a command that was killed by the timeout, as in timeout(1)


class ScriptResult(msgspec.Struct, frozen=True):
    """The exit status of a command and the end of its output."""

    code: int
    said: str


async def run_script(session: ExecStream, seconds: float = math.inf) -> ScriptResult:
    """Run a command until it ends and return the result; kill the command after `seconds`."""
    received = bytearray()

    async def drain(output: str) -> None:
        while chunk := await session.read(output):
            received.extend(chunk)
            del received[:-_MOST_KEPT]

    code = _TOO_LONG
    try:
        with trio.move_on_after(seconds) as deadline:
            async with trio.open_nursery() as nursery:
                for output in session.outputs:
                    nursery.start_soon(drain, output)
                await session.end_input()
                code = await session.wait()
                # Child processes may keep the output open without limit.
                nursery.cancel_scope.deadline = trio.current_time() + _LAST_WORDS
    finally:
        with trio.CancelScope(shield=True):
            await session.close()
    text = received.decode(errors="replace").strip()
    return ScriptResult(
        code, f"took longer than {seconds:g} s" if deadline.cancelled_caught else text
    )
