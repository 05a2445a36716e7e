"""Send notifications at least once.

The write that causes a notification also stores it. The sender loads due notifications, sends a few
concurrently, at most one per job, and stores the result of each attempt. It has no other state. If
the daemon crashes before it stores a result, the message is sent again with the same ID.

Notifications for a configured receiver are grouped: the first one waits for those that follow
within `group_seconds`. Each receiver has its own queue, so no receiver delays another.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING

import msgspec
import trio

from daemon.acl.seal import EnvelopeCipher
from daemon.clock import Clock, wait_until
from daemon.fences import Fences
from daemon.net.http_client import Permit
from daemon.notify import message
from daemon.notify.channels import DeliveryFailed, run_command, send_webhook
from daemon.notify.context import context_of
from daemon.notify.message import Batch, NotificationWithContext
from daemon.variables.change import decrypt_items
from storage.errors import Invalid, NotFound, StorageError, Unsealable
from storage.queries import installation, notifications, variables
from storage.queries.notifications import Key
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND
from storage.records.notification import Notification, NotificationStatus, Receiver, ReceiverResult
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

if TYPE_CHECKING:
    from daemon.notify.delivery import Delivery

log = logging.getLogger("steward.notify")

AT_ONCE = 8  # concurrent attempts on the channels of jobs
_ATTEMPT = 20.0  # seconds per attempt
_FEW = 5  # notifications of a batch with full details
_MARKED = 200  # notifications updated per write
_FOLDER = "steward/notify"  # path of the variables with the secrets
_ITEM = "secret"
_FENCED = "notification"


class NotificationSender:
    """Sends due notifications. Created by `open_notify`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        seal: EnvelopeCipher,
        fences: Fences,
        *,
        receivers: Mapping[str, Receiver],
        commands: Mapping[str, Sequence[str]],
        permit: Permit,
        chance: Callable[[], float],
        here: str,
        site: str,
    ) -> None:
        self._receivers, self._commands, self._permit = receivers, commands, permit
        self._here, self._site = here, site
        self._store, self._clock, self._seal = store, clock, seal
        self._fences = fences
        self._chance = chance
        self._cluster = store.read(installation.cluster_id)
        self._busy: set[Key] = set()
        self._busy_receivers: set[str] = set()
        self._rest = trio.CancelScope()

    async def run(self) -> None:
        """Send due notifications until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                with self._store.watch(notifications.TOPIC) as change:
                    now = self._clock.now()
                    for one in self._next(now):
                        self._busy.add((one.namespace, one.job_id))
                        nursery.start_soon(self._send, one)
                    waiting = self._waiting()
                    for name in [name for name, at in waiting.items() if at <= now]:
                        self._busy_receivers.add(name)
                        nursery.start_soon(self._send_batch, name)
                    at = self._store.read(partial(notifications.next_time, now=now))
                    times = [at, *(at for at in waiting.values() if at > now)]
                    with trio.CancelScope() as self._rest:
                        soonest = min((at for at in times if at is not None), default=None)
                        await wait_until(soonest, self._clock, change)

    def _next(self, now: int) -> list[Notification]:
        if len(self._busy) >= AT_ONCE:
            return []
        # Load more than needed, because notifications of busy units are skipped.
        found = self._store.read(partial(notifications.due, now=now, most=2 * AT_ONCE))
        free = [one for one in found if (one.namespace, one.job_id) not in self._busy]
        return free[: AT_ONCE - len(self._busy)]

    def _waiting(self) -> dict[str, int]:
        """Return the next delivery time of each idle receiver with pending notifications."""
        found = self._store.read(notifications.first_of_receivers)
        return {
            name: at + self._window(name)
            for name, at in found.items()
            if name not in self._busy_receivers
        }

    def _window(self, name: str) -> int:
        receiver = self._receivers.get(name)
        return receiver.group_seconds * SECOND if receiver else 0

    async def _send(self, one: Notification) -> None:
        unit = f"{one.namespace}/{one.job_id}"
        problem = await self._attempt(unit, partial(self._tell, one))
        await self._note([self._after(one, problem)])
        self._busy.discard((one.namespace, one.job_id))
        self._rest.cancel()  # a slot is free again

    @cached_property
    def _delivery(self) -> "Delivery":
        # Imported late, because few daemons have receivers.
        from daemon.notify.delivery import Delivery

        return Delivery(
            receivers=self._receivers,
            commands=self._commands,
            permit=self._permit,
            now=self._clock.now,
            here=self._here,
        )

    async def _send_batch(self, name: str) -> None:
        now = self._clock.now()
        every = self._store.read(partial(notifications.of_receiver, receiver=name, now=now))
        if every:

            async def send() -> None:
                await self._delivery.send(name, await self._batch(every))

            problem = await self._attempt(f"receiver {name}", send)
            await self._note([self._after(one, problem) for one in every])
        self._busy_receivers.discard(name)
        self._rest.cancel()

    async def _attempt(
        self, unit: str, send: Callable[[], Awaitable[object]]
    ) -> DeliveryFailed | None:
        """Make an attempt; return the error, or None if it succeeded."""
        try:
            with trio.fail_after(_ATTEMPT):
                await send()
        except trio.TooSlowError:
            return DeliveryFailed(f"it was not done within {_ATTEMPT:.0f} seconds")
        except DeliveryFailed as error:
            return error
        except StorageError:
            raise
        except Exception as error:  # one invalid message must not stop the daemon
            return DeliveryFailed(self._fences.note(_FENCED, unit, error).reason)
        self._fences.forget(_FENCED, unit)
        return None

    async def _batch(self, every: Sequence[Notification]) -> Batch:
        first, rest = every[:_FEW], every[_FEW:]
        now, here = self._clock.now(), self._here

        def look(db: ReadSnapshot) -> tuple[NotificationWithContext, ...]:
            contexts = [context_of(db, one, site=self._site, now=now, here=here) for one in first]
            return tuple(
                NotificationWithContext(one=one, context=context)
                for one, context in zip(first, contexts, strict=True)
            )

        return Batch(
            id=message.batch_id(self._cluster, every),
            first=await self._store.read_long(look),
            rest=tuple(rest),
            here=here,
        )

    async def test(self, name: str = "") -> list[ReceiverResult]:
        """Send a test message to a receiver or command, or to all without a name.

        Raises `NotFound`.
        """
        kinds = self._delivery.kinds
        if name and name not in kinds:
            known = ", ".join(sorted(kinds)) or "there are none"
            raise NotFound(f'no receiver "{name}" in notify_receivers and notify_commands: {known}')
        results: dict[str, ReceiverResult] = {}

        async def send(one: str) -> None:
            results[one] = await self._test(one)

        async with trio.open_nursery() as nursery:
            for one in [name] if name else kinds:
                nursery.start_soon(send, one)
        return [results[one] for one in sorted(results)]

    async def _test(self, name: str) -> ReceiverResult:
        began, answer = trio.current_time(), ""
        batch = self._delivery.sample(site=self._site)

        async def send() -> None:
            nonlocal answer
            answer = await self._delivery.send(name, batch)

        problem = await self._attempt(f"test of {name}", send)
        if problem is not None:
            answer = f"{problem}: {problem.answer}" if problem.answer else str(problem)
        return ReceiverResult(
            name=name,
            kind=self._delivery.kinds[name],
            is_sent=problem is None,
            answer=answer,
            milliseconds=round((trio.current_time() - began) * 1000),
        )

    async def _tell(self, one: Notification) -> None:
        told = message.message_id(self._cluster, one)
        now = self._clock.now()
        look = partial(context_of, one=one, site=self._site, now=now, here=self._here)
        body = message.body(told, one, await self._store.read_long(look))
        if one.webhook:
            key = self._key((one.namespace, one.job_id))
            headers = message.signature(told, self._clock.now(), body, key)
            # The response of a webhook is not shown: the job's author chooses the address, and it
            # may be internal.
            await send_webhook(one.webhook, headers, body, self._permit)
        elif one.command in self._commands:
            await run_command(one.command, self._commands[one.command], body)
        else:
            raise DeliveryFailed(
                f"the configuration has no command {one.command} in notify_commands"
            )

    def _key(self, job: Key) -> bytes:
        """Return the key that signs the messages of a job. Raises `DeliveryFailed`."""
        namespace, job_id = job
        own = f"{_FOLDER}/{job_id}"
        for path in (own, _FOLDER):
            found = self._store.read(partial(variables.find, namespace=namespace, path=path))
            if found is None:
                continue
            try:
                return message.read_secret(decrypt_items(self._seal, found).get(_ITEM, ""))
            except (Invalid, Unsealable) as error:
                raise DeliveryFailed(
                    f'the item "{_ITEM}" of the variable "{path}" {error}'
                ) from error
        raise DeliveryFailed(
            f'there is nothing to sign with: put a secret into the item "{_ITEM}" of the variable '
            f'"{own}" or "{_FOLDER}" of the namespace "{namespace}"'
        )

    def _after(self, one: Notification, problem: DeliveryFailed | None) -> Notification:
        now, attempts = self._clock.now(), one.attempts + 1
        tried = msgspec.structs.replace(one, attempts=attempts, modify_time=now, next_attempt=0)
        if problem is None:
            return msgspec.structs.replace(tried, status=NotificationStatus.SENT, error="")
        later = now + message.retry_delay(attempts, self._chance())
        if problem.final or message.is_expired(one, attempts, later):
            status, later = NotificationStatus.FAILED, 0
            self._fences.forget(_FENCED, f"{one.namespace}/{one.job_id}")
            to = f" to {one.receiver}" if one.receiver else ""
            log.warning("%s of job %s was not told%s: %s", one.event, one.run_id, to, problem)
        else:
            status = NotificationStatus.PENDING
        return msgspec.structs.replace(tried, status=status, next_attempt=later, error=str(problem))

    async def _note(self, every: Sequence[Notification]) -> None:
        for at in range(0, len(every), _MARKED):
            await self._mark(every[at : at + _MARKED])

    async def _mark(self, some: Sequence[Notification]) -> None:
        def write(tx: Transaction) -> None:
            for one in some:
                notifications.record_attempt(tx, one)

        while True:
            async with tolerate_disk_full(
                f"it is not written down that job {some[0].job_id} was told of"
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
    chance: Callable[[], float],
    receivers: Mapping[str, Receiver] | None = None,
    here: str = "",
    site: str = "",
) -> AsyncIterator[NotificationSender]:
    """Send notifications while the block runs.

    `commands` and `receivers` are those of the configuration, by name. `permit` raises `EgressDenied`
    for an address that must not receive messages. `chance` is uniform in [0, 1). `here` is the name
    of this node, `site` the address of the web UI.
    """
    sender = NotificationSender(
        store,
        clock,
        seal,
        fences,
        receivers=receivers or {},
        commands=commands,
        permit=permit,
        chance=chance,
        here=here,
        site=site,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fences.keep_running, "notifications", sender.run)
        yield sender
        nursery.cancel_scope.cancel()
