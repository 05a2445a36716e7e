"""Whether the daemon's parts still do their work: the examination that the watchdog stands on.

A part that fails ends the daemon; what has to be found out is one that hangs. The event loop shows
itself by coming to this at all, the writer by a write that changes nothing, the readers by any read,
and the listeners by an answer to a request as any task could send it.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from storage.errors import StorageError
from storage.store import Store

_QUESTION = b"GET /v1/status/leader HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def examine(store: Store, listening: Path) -> None:
    """Return when all parts have shown that they work; never, if one of them hangs.

    `listening` is the daemon's socket for tasks. What fails at once, because a disk is full or too
    many are connected, does not hang.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_try, partial(store.write, lambda _: None))
        nursery.start_soon(_reads_go_on, store)
        nursery.start_soon(_try, partial(_ask, listening))


async def _reads_go_on(store: Store) -> None:
    """Return when a long read has ended: ours, or, where many wait before it, another one."""

    async def first(work: Callable[[], Awaitable[None]]) -> None:
        await _try(work)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first, partial(store.read_long, lambda _: None))
        nursery.start_soon(first, store.long_read_ends)


async def _try(work: Callable[[], Awaitable[None]]) -> None:
    with suppress(OSError, StorageError, trio.BrokenResourceError):
        await work()


async def _ask(listening: Path) -> None:
    async with await trio.open_unix_socket(listening) as way:
        await way.send_all(_QUESTION)
        await way.receive_some()  # the beginning of an answer, or its refusal
