"""Running a short command inside a task, to its end or for as long as it may take."""

import math

import msgspec
import trio

from daemon.runner.drivers.driver import Session

_MOST_KEPT = 4096  # bytes of what it has said
_LAST_WORDS = 0.2  # seconds for what an ended command has left in its pipes
_TOO_LONG = 124  # the exit status of a command that was ended, as of timeout(1)


class End(msgspec.Struct, frozen=True):
    """How a command ended, and the last that it said."""

    code: int
    said: str


async def run_script(session: Session, seconds: float = math.inf) -> End:
    """Return how a command ended; one that takes longer is ended."""
    said = bytearray()

    async def drain(output: str) -> None:
        while piece := await session.read(output):
            said.extend(piece)
            del said[:-_MOST_KEPT]

    code = _TOO_LONG
    try:
        with trio.move_on_after(seconds) as deadline:
            async with trio.open_nursery() as nursery:
                for output in session.outputs:
                    nursery.start_soon(drain, output)
                await session.end_input()
                code = await session.wait()
                # What it has left behind may hold its output open for ever.
                nursery.cancel_scope.deadline = trio.current_time() + _LAST_WORDS
    finally:
        with trio.CancelScope(shield=True):
            await session.close()
    text = said.decode(errors="replace").strip()
    return End(code, f"took longer than {seconds:g} s" if deadline.cancelled_caught else text)
