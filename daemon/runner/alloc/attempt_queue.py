"""Wait for an attempt that starts elsewhere, such as in the queue of a cluster."""

from collections.abc import Awaitable, Callable

import trio

from daemon.runner.core.driver import QueuedTask, StartFailed
from daemon.runner.core.notifier import wait_any

Wait = Callable[[], Awaitable[object]]


async def wait_until_scheduled(
    running: QueuedTask, note: Callable[[str], None], killed: Wait, tend: Wait | None
) -> int | None:
    """Wait until a queued attempt starts; return its start time in nanoseconds.

    Return None if the attempt ended in the queue, or if `killed` returned first. `note` receives
    progress messages. `tend` keeps the inputs of the task current during the wait. When cancelled,
    release the attempt. Raises `StartFailed`.
    """
    began: int | None = None
    failure: StartFailed | None = None

    async def begin() -> None:
        nonlocal began, failure
        try:
            began = await running.wait_for_start(note)
        except StartFailed as error:
            failure = error

    async def tend_for_ever() -> None:
        if tend is not None:
            await tend()
        await trio.sleep_forever()

    try:
        await wait_any(begin, killed, tend_for_ever)
    except BaseException:  # also when cancelled: no other code has the attempt yet
        running.release()
        raise
    if failure is not None:
        raise failure
    return began
