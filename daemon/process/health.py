"""Health check of the daemon's parts for the watchdog of the service manager.

The daemon exits if a part fails, so this check finds parts that hang. If the check runs, the event
loop runs. A write without changes shows that the writer works, and a read shows that the readers
work. A connection to the daemon's socket for tasks shows that the listeners work.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from storage.errors import StorageError
from storage.store import Store

_QUESTION = b"GET /v1/status/leader HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def check_health(store: Store, listening: Path) -> None:
    """Wait until all parts have responded; if a part hangs, wait forever.

    `listening` is the daemon's socket for tasks. An immediate error, such as a full disk or too
    many connections, is not a hang.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_try, partial(store.write, lambda _: None))
        nursery.start_soon(_wait_for_long_read, store)
        nursery.start_soon(_try, partial(_probe, listening))


async def _wait_for_long_read(store: Store) -> None:
    """Start a long read, and wait until this read or an earlier long read has ended."""

    async def first(work: Callable[[], Awaitable[None]]) -> None:
        await _try(work)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first, partial(store.read_long, lambda _: None))
        nursery.start_soon(first, store.long_read_ends)


async def _try(work: Callable[[], Awaitable[None]]) -> None:
    # Only a hanging daemon is unhealthy. An error is a response.
    with suppress(OSError, StorageError, trio.BrokenResourceError):
        await work()


async def _probe(listening: Path) -> None:
    async with await trio.open_unix_socket(listening) as stream:
        await stream.send_all(_QUESTION)
        await stream.receive_some()  # the beginning of an answer, or a rejection
