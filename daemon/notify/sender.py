"""Send notifications at least once.

The write that causes a notification also stores it. The sender loads due notifications, sends a few
concurrently, at most one per job, and stores the result of each attempt. It has no other state. If
the daemon crashes before it stores a result, the message is sent again with the same ID.

Notifications for a configured receiver are grouped: the first one waits for those that follow
within `group_seconds`. Each receiver has its own queue, so no receiver delays another.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING

import trio

from daemon.acl.seal import EnvelopeCipher
from daemon.clock import Clock, wait_until
from daemon.fences import Fences
from daemon.net.http_client import Permit
from storage.queries import notifications
from storage.queries.notifications import Key
from storage.records.base import SECOND
from storage.records.notification import Notification, Receiver, ReceiverResult
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

if TYPE_CHECKING:
    from daemon.notify.attempts import NotificationAttempts
    from daemon.notify.channels import RunCommand


AT_ONCE = 8  # concurrent attempts on the channels of jobs
_MARKED = 200  # notifications updated per write


class NotificationSender:
    """Sends due notifications. Created by `open_notify`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        receivers: Mapping[str, Receiver],
        attempts: "Callable[[], NotificationAttempts]",
    ) -> None:
        self._receivers = receivers
        self._store, self._clock = store, clock
        self._open_attempts = attempts
        self._busy: set[Key] = set()
        self._busy_receivers: set[str] = set()
        self._pause = trio.CancelScope()

    @cached_property
    def _attempts(self) -> "NotificationAttempts":
        return self._open_attempts()

    async def run(self) -> None:
        """Send due notifications until cancelled."""
        # After an error, `run` starts again. By then, all attempts of its earlier nursery have
        # ended.
        self._busy.clear()
        self._busy_receivers.clear()
        async with trio.open_nursery() as nursery:
            while True:
                with self._store.watch(notifications.TOPIC) as change:
                    now = self._clock.now()
                    for notification in self._next(now):
                        self._busy.add((notification.namespace, notification.job_id))
                        nursery.start_soon(self._send, notification)
                    waiting = self._waiting()
                    for name in [name for name, due_time in waiting.items() if due_time <= now]:
                        self._busy_receivers.add(name)
                        nursery.start_soon(self._send_batch, name)
                    next_time = self._store.read(partial(notifications.next_time, now=now))
                    times = [
                        next_time,
                        *(due_time for due_time in waiting.values() if due_time > now),
                    ]
                    with trio.CancelScope() as self._pause:
                        soonest = min((time for time in times if time is not None), default=None)
                        await wait_until(soonest, self._clock, change)

    def _next(self, now: int) -> list[Notification]:
        if len(self._busy) >= AT_ONCE:
            return []
        # Load more than needed, because notifications of busy units are skipped.
        due_notifications = self._store.read(partial(notifications.due, now=now, most=2 * AT_ONCE))
        free = [
            notification
            for notification in due_notifications
            if (notification.namespace, notification.job_id) not in self._busy
        ]
        return free[: AT_ONCE - len(self._busy)]

    def _waiting(self) -> dict[str, int]:
        """Return the next delivery time of each idle receiver with pending notifications."""
        first_due = self._store.read(notifications.first_of_receivers)
        return {
            name: due_time + self._window(name)
            for name, due_time in first_due.items()
            if name not in self._busy_receivers
        }

    def _window(self, name: str) -> int:
        receiver = self._receivers.get(name)
        return receiver.group_seconds * SECOND if receiver else 0

    async def _send(self, notification: Notification) -> None:
        await self._record_attempts([await self._attempts.send(notification)])
        self._busy.discard((notification.namespace, notification.job_id))
        self._pause.cancel()  # a slot is free again

    async def _send_batch(self, name: str) -> None:
        await self._record_attempts(await self._attempts.send_batch(name))
        self._busy_receivers.discard(name)
        self._pause.cancel()

    async def test(self, name: str = "") -> list[ReceiverResult]:
        """Send a test message to the receiver or command `name`, or to all if `name` is empty.

        Raises `NotFound`.
        """
        return await self._attempts.test(name)

    async def _record_attempts(self, entries: Sequence[Notification]) -> None:
        for start in range(0, len(entries), _MARKED):
            await self._mark(entries[start : start + _MARKED])

    async def _mark(self, notifications_to_mark: Sequence[Notification]) -> None:
        def write(tx: Transaction) -> None:
            for notification in notifications_to_mark:
                notifications.record_attempt(tx, notification)

        while True:
            async with tolerate_disk_full(
                f"cannot store the delivery results of job {notifications_to_mark[0].job_id}"
            ):
                await self._store.write(write)
                return


@asynccontextmanager
async def open_notify(
    store: Store,
    clock: Clock,
    seal: EnvelopeCipher,
    fences: Fences,
    *,
    commands: Mapping[str, Sequence[str]],
    permit: Permit,
    random: Callable[[], float],
    receivers: Mapping[str, Receiver] | None = None,
    node_name: str = "",
    site: str = "",
    run: "RunCommand | None" = None,
) -> AsyncIterator[NotificationSender]:
    """Send notifications while the block runs.

    `commands` and `receivers` are those of the configuration, by name. `permit` raises
    `EgressDenied` for an address that must not receive messages. `random` returns uniform numbers
    in [0, 1). `node_name` is the name of this node, `site` the address of the web UI. `run` runs a
    command, by default as a child of this process.
    """

    def open_attempts() -> "NotificationAttempts":
        # Imported late: many daemons never send a notification.
        from daemon.notify.attempts import NotificationAttempts
        from daemon.notify.channels import run_command

        return NotificationAttempts(
            store,
            clock,
            seal,
            fences,
            receivers=receivers or {},
            commands=commands,
            run=run or run_command,
            permit=permit,
            random=random,
            node_name=node_name,
            site=site,
        )

    sender = NotificationSender(store, clock, receivers or {}, open_attempts)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fences.keep_running, "notifications", sender.run)
        yield sender
        nursery.cancel_scope.cancel()
