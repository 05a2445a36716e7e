"""Turns of clients on the event loop, so that many requests of one client delay no other client.

Trio runs all runnable tasks before it looks for new input. If hundreds of connections have a
request at the same time, another client would wait for all of them. So the tasks of requests use at
most `SLICE` of CPU time before the loop looks for new input. The other tasks wait, and clients then
take turns.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio
from outcome import Value

SLICE = 2_000_000  # nanoseconds of CPU time between two looks for new input
_WOKEN = 32  # tasks that are woken in one round; those that find no time continue to wait
# nanoseconds of CPU time that a request to the HTTP server takes after the step that reads it
BY_SERVER = 700_000
# Clients with a turn even if other tasks have used the time, so that each request is served.
_SURE = 4


Turn = Callable[[], Awaitable[None]]  # waits until a connection has a turn


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
        if client in self._waiting or time.thread_time_ns() >= self._round.until:
            await self._wait(client)
        self._round.until -= later

    async def run(self) -> None:
        """Give turns until cancelled."""
        with self._rounds():
            while True:
                await self._arrived.wait()
                while self._waiting:
                    await trio.lowlevel.checkpoint()
                    self._give()
                self._arrived = trio.Event()

    async def _wait(self, client: str) -> None:
        task, is_new = trio.lowlevel.current_task(), True
        self._arrived.set()
        while True:
            is_sure = await self._woken(client, task, is_new=is_new)
            if is_sure or time.thread_time_ns() < self._round.until:
                return
            is_new = False

    async def _woken(self, client: str, task: trio.lowlevel.Task, *, is_new: bool) -> bool:
        """Wait until this task is woken; return whether it has a turn in any case.

        A task that is not new waits before the other tasks of its client.
        """
        tasks = self._waiting.setdefault(client, OrderedDict())
        tasks[task] = None
        if not is_new:
            tasks.move_to_end(task, last=False)
            self._arrived.set()

        def cancel(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._forget(client, task)
            return trio.lowlevel.Abort.SUCCEEDED

        is_sure: bool = await trio.lowlevel.wait_task_rescheduled(cancel)
        return is_sure

    def _forget(self, client: str, task: trio.lowlevel.Task) -> None:
        tasks = self._waiting[client]
        del tasks[task]
        if not tasks:
            del self._waiting[client]

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
