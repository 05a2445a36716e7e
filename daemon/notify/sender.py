"""Sending what is to be told of jobs, at least once.

What is to be sent stands in the store since the write of its cause. The sender looks at what is
due, sends a few at a time, of one job never two, and writes down how each attempt has gone; it
remembers nothing else. A message that was sent when the daemon died before it could say so is sent
again, under the same id.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import trio

from daemon.acl.seal import Seal
from daemon.clock import Clock, wait_until
from daemon.fences import Fences
from daemon.notify import message
from daemon.notify.ways import NotTold, post, run
from daemon.runner.http import Permit
from daemon.variables.change import items_of
from storage.errors import Invalid, StorageError, Unsealable
from storage.queries import installation, notifications, variables
from storage.queries.notifications import Key
from storage.records.notification import Notification, NotificationStatus
from storage.store import Store, unless_full

log = logging.getLogger("steward.notify")

AT_ONCE = 8  # attempts
_ATTEMPT = 20.0  # seconds that one may take
_FOLDER = "steward/notify"  # of the variables that hold the secrets
_ITEM = "secret"
_FENCED = "notification"


class Sender:
    """Sends what is due. Made by `open_notify`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        seal: Seal,
        fences: Fences,
        *,
        commands: Mapping[str, Sequence[str]],
        permit: Permit,
        chance: Callable[[], float],
    ) -> None:
        self._store, self._clock, self._seal = store, clock, seal
        self._fences = fences
        self._commands, self._permit, self._chance = commands, permit, chance
        self._cluster = store.read(installation.cluster_id)
        self._busy: set[Key] = set()
        self._rest = trio.CancelScope()

    async def run(self) -> None:
        """Send what is due, and wait for more, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                with self._store.watch(notifications.TOPIC) as change:
                    now = self._clock.now()
                    for one in self._next(now):
                        self._busy.add((one.namespace, one.job_id))
                        nursery.start_soon(self._send, one)
                    at = self._store.read(partial(notifications.next_time, now=now))
                    with trio.CancelScope() as self._rest:
                        await wait_until(at, self._clock, change)

    def _next(self, now: int) -> list[Notification]:
        if len(self._busy) >= AT_ONCE:
            return []
        # Of those that are busy none is taken, so they are looked past.
        found = self._store.read(partial(notifications.due, now=now, most=2 * AT_ONCE))
        free = [one for one in found if (one.namespace, one.job_id) not in self._busy]
        return free[: AT_ONCE - len(self._busy)]

    async def _send(self, one: Notification) -> None:
        problem: NotTold | None = None
        unit = f"{one.namespace}/{one.job_id}"
        try:
            with trio.fail_after(_ATTEMPT):
                await self._tell(one)
            self._fences.forget(_FENCED, unit)
        except trio.TooSlowError:
            problem = NotTold(f"it was not done within {_ATTEMPT:.0f} seconds")
        except NotTold as error:
            problem = error
        except StorageError:
            raise
        except Exception as error:  # one message must not end the daemon
            problem = NotTold(self._fences.note(_FENCED, unit, error).reason)
        await self._note(self._after(one, problem))
        self._busy.discard((one.namespace, one.job_id))
        self._rest.cancel()  # there is room for another

    async def _tell(self, one: Notification) -> None:
        told = message.message_id(self._cluster, one)
        body = message.body(told, one)
        if one.webhook:
            key = self._key((one.namespace, one.job_id))
            headers = message.signed(told, self._clock.now(), body, key)
            await post(one.webhook, headers, body, self._permit)
        elif one.command in self._commands:
            await run(one.command, self._commands[one.command], body)
        else:
            raise NotTold(f"the configuration has no command {one.command} in notify_commands")

    def _key(self, job: Key) -> bytes:
        """Return the key that signs the messages of a job. Raises `NotTold`."""
        namespace, job_id = job
        own = f"{_FOLDER}/{job_id}"
        for path in (own, _FOLDER):
            found = self._store.read(partial(variables.find, namespace=namespace, path=path))
            if found is None:
                continue
            try:
                return message.read_secret(items_of(self._seal, found).get(_ITEM, ""))
            except (Invalid, Unsealable) as error:
                raise NotTold(f'the item "{_ITEM}" of the variable "{path}" {error}') from error
        raise NotTold(
            f'there is nothing to sign with: put a secret into the item "{_ITEM}" of the variable '
            f'"{own}" or "{_FOLDER}" of the namespace "{namespace}"'
        )

    def _after(self, one: Notification, problem: NotTold | None) -> Notification:
        now, attempts = self._clock.now(), one.attempts + 1
        tried = msgspec.structs.replace(one, attempts=attempts, modify_time=now, next_attempt=0)
        if problem is None:
            return msgspec.structs.replace(tried, status=NotificationStatus.SENT, error="")
        later = now + message.pause(attempts, self._chance())
        if problem.final or message.is_given_up(one, attempts, later):
            status, later = NotificationStatus.FAILED, 0
            log.warning("%s of job %s was not told: %s", one.event, one.run_id, problem)
        else:
            status = NotificationStatus.PENDING
        return msgspec.structs.replace(tried, status=status, next_attempt=later, error=str(problem))

    async def _note(self, one: Notification) -> None:
        while True:
            async with unless_full(f"it is not written down that job {one.job_id} was told of"):
                await self._store.write(lambda tx: notifications.mark(tx, one))
                return


@asynccontextmanager
async def open_notify(
    store: Store,
    clock: Clock,
    seal: Seal,
    fences: Fences,
    *,
    commands: Mapping[str, Sequence[str]],
    permit: Permit,
    chance: Callable[[], float],
) -> AsyncIterator[None]:
    """Send what is to be told of jobs while the block runs.

    `commands` are those of the configuration, by name; `permit` raises `Forbidden` for an address
    that gets no message; `chance` is uniform in [0, 1).
    """
    sender = Sender(store, clock, seal, fences, commands=commands, permit=permit, chance=chance)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fences.keep_running, "notifications", sender.run)
        yield
        nursery.cancel_scope.cancel()
