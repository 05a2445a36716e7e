"""Waiting for the turn of an attempt that was taken somewhere else, as in the queue of a cluster."""

from collections.abc import Awaitable, Callable

import trio

from daemon.runner.changes import first_of
from daemon.runner.drivers.driver import Queued, StartFailed

Wait = Callable[[], Awaitable[object]]


async def wait_for_turn(
    running: Queued, note: Callable[[str], None], killed: Wait, tend: Wait | None
) -> int | None:
    """Return when an attempt began; None: it has ended before, or `killed` has returned.

    `note` is told where it stands; `tend` keeps meanwhile what it will be given as it should be.
    Raises `StartFailed`. When cancelled, lets go of it.
    """
    began: int | None = None
    failure: StartFailed | None = None

    async def begin() -> None:
        nonlocal began, failure
        try:
            began = await running.begun(note)
        except StartFailed as error:
            failure = error

    async def tend_for_ever() -> None:
        if tend is not None:
            await tend()
        await trio.sleep_forever()

    try:
        await first_of(begin, killed, tend_for_ever)
    except BaseException:
        running.release()
        raise
    if failure is not None:
        raise failure
    return began
