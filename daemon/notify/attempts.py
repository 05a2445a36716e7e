"""Attempts to send notifications: one notification of a job, or a batch for a receiver."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec
import trio

from daemon.acl.seal import EnvelopeCipher
from daemon.clock import Clock
from daemon.fences import Fences, concerns_every_unit
from daemon.net.http_client import Permit
from daemon.notify import message
from daemon.notify.channels import DeliveryFailed, RunCommand, send_webhook
from daemon.notify.context import context_of
from daemon.notify.delivery import Delivery
from daemon.notify.message import Batch, NotificationWithContext
from daemon.variables.change import decrypt_items
from storage.errors import Invalid, NotFound, Unsealable
from storage.queries import installation, notifications, variables
from storage.queries.notifications import Key
from storage.read_pool import ReadSnapshot
from storage.records.notification import Notification, NotificationStatus, Receiver, ReceiverResult
from storage.store import Store

log = logging.getLogger("steward.notify")

_ATTEMPT = 20.0  # seconds per attempt
_FEW = 5  # notifications of a batch with full details
_FOLDER = "steward/notify"  # path of the variables that hold the secrets
_ITEM = "secret"
_FENCED = "notification"


class NotificationAttempts:
    """Makes one attempt to send each message. It does not store the results."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        seal: EnvelopeCipher,
        fences: Fences,
        *,
        receivers: Mapping[str, Receiver],
        commands: Mapping[str, Sequence[str]],
        run: RunCommand,
        permit: Permit,
        random: Callable[[], float],
        node_name: str,
        site: str,
    ) -> None:
        self._commands, self._run, self._permit = commands, run, permit
        self._node_name, self._site = node_name, site
        self._store, self._clock, self._seal = store, clock, seal
        self._fences = fences
        self._random = random
        self._cluster = store.read(installation.cluster_id)
        self._delivery = Delivery(
            receivers=receivers,
            commands=commands,
            run=run,
            permit=permit,
            now=clock.now,
            node_name=node_name,
        )

    async def send(self, notification: Notification) -> Notification:
        """Send a notification of a job; return it with the result."""
        problem = await self._attempt(
            f"{notification.namespace}/{notification.job_id}",
            partial(self._log_attempt, notification),
        )
        return self._after(notification, problem)

    async def send_batch(self, name: str) -> list[Notification]:
        """Send the due notifications of a receiver; return them with the result."""
        now = self._clock.now()
        batch = self._store.read(partial(notifications.of_receiver, receiver=name, now=now))
        if not batch:
            return []

        async def send() -> None:
            await self._delivery.send(name, await self._batch(batch))

        problem = await self._attempt(f"receiver {name}", send)
        return [self._after(notification, problem) for notification in batch]

    async def _attempt(
        self, unit: str, send: Callable[[], Awaitable[object]]
    ) -> DeliveryFailed | None:
        """Make an attempt; return the error, or None if it succeeded."""
        try:
            with trio.fail_after(_ATTEMPT):
                await send()
        except trio.TooSlowError:
            return DeliveryFailed(f"there was no result within {_ATTEMPT:.0f} seconds")
        except DeliveryFailed as error:
            return error
        except Exception as error:  # one invalid message must not stop the daemon
            if concerns_every_unit(error):
                raise
            return DeliveryFailed(self._fences.record(_FENCED, unit, error).reason)
        self._fences.forget(_FENCED, unit)
        return None

    async def _batch(self, entries: Sequence[Notification]) -> Batch:
        first, further = entries[:_FEW], entries[_FEW:]
        now, node_name = self._clock.now(), self._node_name

        def look(db: ReadSnapshot) -> tuple[NotificationWithContext, ...]:
            contexts = [
                context_of(db, notification, site=self._site, now=now, node_name=node_name)
                for notification in first
            ]
            return tuple(
                NotificationWithContext(notification=notification, context=context)
                for notification, context in zip(first, contexts, strict=True)
            )

        return Batch(
            id=message.batch_id(self._cluster, entries),
            first=await self._store.read_long(look),
            rest=tuple(further),
            node_name=node_name,
        )

    async def test(self, name: str = "") -> list[ReceiverResult]:
        """Send a test message to the receiver or command `name`, or to all if `name` is empty.

        Raises `NotFound`.
        """
        kinds = self._delivery.kinds
        if name and name not in kinds:
            known_kinds = ", ".join(sorted(kinds)) or "none is configured"
            raise NotFound(
                f'no receiver "{name}" in notify_receivers and notify_commands: {known_kinds}'
            )
        results: dict[str, ReceiverResult] = {}

        async def send(notification: str) -> None:
            results[notification] = await self._test(notification)

        async with trio.open_nursery() as nursery:
            for channel in [name] if name else kinds:
                nursery.start_soon(send, channel)
        return [results[channel] for channel in sorted(results)]

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

    async def _log_attempt(self, notification: Notification) -> None:
        message_id = message.message_id(self._cluster, notification)
        now = self._clock.now()
        context = partial(
            context_of,
            notification=notification,
            site=self._site,
            now=now,
            node_name=self._node_name,
        )
        body = message.body(message_id, notification, await self._store.read_long(context))
        if notification.webhook:
            key = self._key((notification.namespace, notification.job_id))
            headers = message.signature(message_id, self._clock.now(), body, key)
            # The response of a webhook is not shown: the job's author chooses the address, and it
            # may be internal.
            await send_webhook(notification.webhook, headers, body, self._permit)
        elif notification.command in self._commands:
            await self._run(notification.command, self._commands[notification.command], body)
        else:
            raise DeliveryFailed(
                f"the configuration has no command {notification.command} in notify_commands"
            )

    def _key(self, job: Key) -> bytes:
        """Return the key that signs the messages of a job. Raises `DeliveryFailed`."""
        namespace, job_id = job
        own = f"{_FOLDER}/{job_id}"
        for path in (own, _FOLDER):
            variable = self._store.read(partial(variables.find, namespace=namespace, path=path))
            if variable is None:
                continue
            try:
                return message.read_secret(decrypt_items(self._seal, variable).get(_ITEM, ""))
            except (Invalid, Unsealable) as error:
                raise DeliveryFailed(
                    f'the item "{_ITEM}" of the variable "{path}" {error}'
                ) from error
        raise DeliveryFailed(
            f'there is no secret to sign with: store one in the item "{_ITEM}" of the variable '
            f'"{own}" or "{_FOLDER}" of the namespace "{namespace}"'
        )

    def _after(self, notification: Notification, problem: DeliveryFailed | None) -> Notification:
        now, attempts = self._clock.now(), notification.attempts + 1
        tried = msgspec.structs.replace(
            notification, attempts=attempts, modify_time=now, next_attempt=0
        )
        if problem is None:
            return msgspec.structs.replace(tried, status=NotificationStatus.SENT, error="")
        later = now + message.retry_delay(attempts, self._random())
        if problem.final or message.is_expired(notification, attempts, later):
            status, later = NotificationStatus.FAILED, 0
            self._fences.forget(_FENCED, f"{notification.namespace}/{notification.job_id}")
            to = f" to {notification.receiver}" if notification.receiver else ""
            log.warning(
                'the notification "%s" of job %s was not delivered%s: %s',
                notification.event,
                notification.run_id,
                to,
                problem,
            )
        else:
            status = NotificationStatus.PENDING
        return msgspec.structs.replace(tried, status=status, next_attempt=later, error=str(problem))
