"""Turns of clients on the event loop, so that many requests of one client delay no other client.

Trio runs all runnable tasks before it looks for new input. If hundreds of connections have a
request at the same time, another client would wait for all of them. So the tasks of requests use at
most `SLICE` of CPU time before the loop looks for new input. The other tasks wait, and clients then
take turns. Requests that wait for a change, such as blocking queries, also take turns afterwards.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import trio
from outcome import Value

from storage.watch import Watch

SLICE = 2_000_000  # nanoseconds of CPU time between two looks for new input
_WOKEN = 32  # tasks that are woken in one round; those that find no time continue to wait
# nanoseconds of CPU time that a request to the HTTP server takes after the step that reads it
BY_SERVER = 700_000
# Clients with a turn even if other tasks have used the time, so that each request is served.
_SURE = 4


# the turns of the connection to which the present task belongs
_PRESENT: ContextVar["ConnectionTurns | None"] = ContextVar("turns", default=None)


class _Round(trio.abc.Instrument):
    """The CPU time at which the requests of the present round of the loop end."""

    def __init__(self) -> None:
        self.until = 0

    def after_io_wait(self, _timeout: float) -> None:
        self.until = time.thread_time_ns() + SLICE


class Turns:
    """The requests that wait for a turn, by client."""

    def __init__(self) -> None:
        self._round = _Round()
        # The tasks of each client in the order in which they came. The client that waits longest
        # for a turn is first.
        self._waiting: OrderedDict[str, OrderedDict[trio.lowlevel.Task, None]] = OrderedDict()
        self._arrived = trio.Event()

    async def take(self, client: str, later: int = 0) -> None:
        """Return when it is the turn of this task, which works for a client.

        It returns immediately if the round has time, and no other task of the client waits. `later`
        is the CPU time, in nanoseconds, that the request takes after this step of the task.
        """
        if client in self._waiting or not self._has_time():
            task = trio.lowlevel.current_task()
            self._add(client, task)
            await self._wait(client, task, partial(self._forget, client, task))
        self._round.until -= later

    async def take_after(self, client: str, change: Watch) -> None:
        """Return after a change, when it is the turn of this task.

        One change can end the waits of thousands of tasks. No task runs before it has a turn.
        """
        if change.has_changed:
            await self.take(client)
            return
        task = trio.lowlevel.current_task()
        change.on_change = partial(self._add, client, task)

        def give_up() -> None:
            change.on_change = None
            self._forget(client, task)

        await self._wait(client, task, give_up)

    def _has_time(self) -> bool:
        return time.thread_time_ns() < self._round.until

    async def run(self) -> None:
        """Give turns until cancelled."""
        with self._rounds():
            while True:
                await self._arrived.wait()
                while self._waiting:
                    await trio.lowlevel.checkpoint()
                    self._give()
                self._arrived = trio.Event()

    async def _wait(
        self, client: str, task: trio.lowlevel.Task, give_up: Callable[[], None]
    ) -> None:
        """Wait until this task is woken, and has a turn; call `give_up` if the wait is cancelled.

        A task that was woken too late for the round waits before the other tasks of its client.
        """

        def cancel(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            give_up()
            return trio.lowlevel.Abort.SUCCEEDED

        while not (await trio.lowlevel.wait_task_rescheduled(cancel) or self._has_time()):
            self._add(client, task)
            self._waiting[client].move_to_end(task, last=False)

    def _add(self, client: str, task: trio.lowlevel.Task) -> None:
        self._waiting.setdefault(client, OrderedDict())[task] = None
        self._arrived.set()

    def _forget(self, client: str, task: trio.lowlevel.Task) -> None:
        tasks = self._waiting.get(client, OrderedDict())
        tasks.pop(task, None)
        if not tasks:
            self._waiting.pop(client, None)

    def _give(self) -> None:
        """Wake some of the tasks, one of each client in turn."""
        sure = min(_SURE, len(self._waiting))
        for number in range(_WOKEN):
            if not self._waiting:
                return
            client, tasks = self._waiting.popitem(last=False)
            task, _ = tasks.popitem(last=False)
            if tasks:
                self._waiting[client] = tasks
            trio.lowlevel.reschedule(task, Value(number < sure))

    @contextmanager
    def _rounds(self) -> Iterator[None]:
        trio.lowlevel.add_instrument(self._round)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(self._round)


class ConnectionTurns:
    """The turns of one connection's requests."""

    def __init__(self, turns: Turns, client: str) -> None:
        self._turns, self._client = turns, client

    def use(self) -> None:
        """Let `resume` and `resume_after` use these turns, in this task and those that it starts."""
        _PRESENT.set(self)

    async def take(self) -> None:
        """Wait for a turn."""
        await self._turns.take(self._client)

    async def take_by_server(self) -> None:
        """Wait for a turn of a request to the HTTP server."""
        await self._turns.take(self._client, BY_SERVER)

    async def take_after(self, change: Watch) -> None:
        """Wait for a change, and then for a turn."""
        await self._turns.take_after(self._client, change)


async def resume() -> None:
    """Wait for a turn before a request continues after a wait."""
    if (turns := _PRESENT.get()) is not None:
        await turns.take()


async def resume_after(change: Watch) -> None:
    """Wait for a change, and then for a turn of the present request."""
    if (turns := _PRESENT.get()) is None:
        await change.wait()
    else:
        await turns.take_after(change)
