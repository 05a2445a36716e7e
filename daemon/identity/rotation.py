"""Rotation of the client secret: a new one, proven, put to use, and only then the old one away.

Each step is stored before the next begins, so a daemon that ends anywhere in between has a secret
that works and goes on when it starts again. A new secret becomes known in a directory after a
while only: it is put to use when a token was really got with it. Secrets that somebody else made
stay unless the configuration says otherwise. One step of a mount is under way at a time, it counts
only if what it began with still holds, and the audit says what it did.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import trio

from daemon.acl.seal import Seal
from daemon.clock import Clock
from daemon.identity.credentials import Client, Credentials
from daemon.identity.graph import Graph, Password
from daemon.identity.method import pending_place, secret_place
from daemon.jobspec import cron
from storage.errors import Refused, StewardError
from storage.queries import audit, identity, mounts, rotations, secrets
from storage.records.audit import AuditEntry
from storage.records.base import MINUTE, SECOND
from storage.records.identity import MethodConfig, Mount, Rotation
from storage.store import Store, unless_full
from storage.writer import Transaction

log = logging.getLogger("steward.identity.rotation")

SETTLES = 60 * SECOND  # before this a new secret is hardly ever known everywhere
GIVE_UP = 60 * MINUTE  # after this a new secret that does not work is thrown away
_LONGEST_STEP = 300.0  # seconds, all attempts together
_ROUND = 15.0  # seconds between looks at what is to be done
_LONGEST_BACKOFF = 60 * MINUTE


class Rotations:
    """The rotations of all mounts."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        seal: Seal,
        ids: Iterator[str],
        credentials: Credentials,
        graph: Graph,
        client_of: Callable[[Mount], Client],
    ) -> None:
        self._store = store
        self._clock = clock
        self._seal = seal
        self._ids = ids
        self._credentials = credentials
        self._graph = graph
        self._client_of = client_of
        self._under_way: dict[str, trio.Lock] = {}  # by accessor

    def state(self, mount: Mount) -> Rotation:
        """Return how far the rotation of a mount is."""
        return self._known(mount) or Rotation(since=self._clock.now())

    def _known(self, mount: Mount) -> Rotation | None:
        return self._store.read(partial(rotations.find, mount=mount.accessor))

    def _alone(self, mount: Mount) -> trio.Lock:
        return self._under_way.setdefault(mount.accessor, trio.Lock())

    # ---- the steps

    async def begin(self, mount: Mount) -> None:
        """Make a new secret; it is put to use when it works. Raises `Refused`."""
        if self._store.read(partial(identity.config, mount=mount.accessor)) is None:
            raise Refused("config is nil")
        async with self._alone(mount):
            await self._begin(mount)

    async def _begin(self, mount: Mount) -> None:
        client = self._client_of(mount)
        if not (client.secret or client.settings.environment_secret):
            raise Refused("there is no client secret to rotate: this method has none")
        application = await self._graph.application(client)
        now = self._clock.now()
        ttl = client.settings.config.root_password_ttl or MethodConfig().root_password_ttl
        ends_at = now + ttl * SECOND
        name = f"{_mark(mount)}{next(self._ids)}"
        before = self.state(mount)
        # Should we end before we know the new secret, it is found by its name and removed.
        marked = msgspec.structs.replace(before, unclean=True)
        await self._note(mount, marked)
        password = await self._graph.add_password(client, application, name, ends_at)
        place = pending_place(mount)
        sealed = self._seal.seal((password.secret_text or "").encode(), place)
        state = msgspec.structs.replace(
            before,
            pending=password.key_id,
            pending_since=now,
            pending_ends_at=ends_at,
            problem="",
            failures=0,
            try_again_at=0,
        )
        text = f"a new client secret was made ({password.key_id})"
        if not await self._advance(
            mount, (marked, state), text, lambda tx: secrets.put(tx, place, sealed)
        ):
            raise Refused("the configuration was changed meanwhile")

    async def _put_to_use(self, mount: Mount, state: Rotation) -> None:
        """Put a new secret to use if a token can be got with it. Raises `Refused`."""
        sealed = self._store.read(partial(secrets.find, place=pending_place(mount)))
        if sealed is None:
            raise Refused("the new secret is lost: it will be removed")
        plain = self._seal.unseal(sealed, pending_place(mount))
        client = msgspec.structs.replace(self._client_of(mount), secret=plain.decode())
        await self._credentials.granted(client, client.settings.endpoints.audience)
        place = secret_place(mount)
        in_place, now = self._seal.seal(plain, place), self._clock.now()

        def write(tx: Transaction) -> None:
            secrets.put(tx, place, in_place)
            secrets.remove(tx, pending_place(mount))
            if config := identity.config(tx, mount.accessor):
                expiring = msgspec.structs.replace(
                    config, root_password_expires_at=state.pending_ends_at
                )
                identity.put_config(tx, mount.accessor, expiring)

        done = Rotation(since=state.since, current=state.pending, unclean=True, rotated_at=now)
        text = f"a token was got with the new client secret, it is in use ({state.pending})"
        await self._advance(mount, (state, done), text, write)
        self._credentials.forget(mount.accessor)

    async def _clean_up(self, mount: Mount, state: Rotation) -> None:
        """Remove the secrets that are not in use any more. Raises `Refused`."""
        client = self._client_of(mount)
        application = await self._graph.application(client)
        # Which one is in use is known only of those that were made here.
        every = client.settings.config.remove_foreign_passwords and bool(state.current)
        removed = []
        for password in application.password_credentials:
            if password.key_id in (state.current, state.pending):
                continue
            if every or _is_ours(mount, password):
                await self._graph.remove_password(client, application, password.key_id)
                removed.append(password.key_id)
            else:
                log.warning(
                    "%s: a secret that was not made here stays (%s)", mount.path, password.key_id
                )
        clean = msgspec.structs.replace(state, unclean=False, problem="")
        text = f"old client secrets were removed: {', '.join(removed) or 'there were none'}"
        await self._advance(mount, (state, clean), text)

    async def _give_up(self, mount: Mount, state: Rotation) -> None:
        """Throw away a new secret that never worked; the old one stays in use."""
        without = msgspec.structs.replace(state, pending="", unclean=True)
        text = f"the new client secret does not work and is removed ({state.pending})"
        await self._advance(
            mount, (state, without), text, lambda tx: secrets.remove(tx, pending_place(mount))
        )

    async def _note(self, mount: Mount, state: Rotation) -> None:
        """Note how far a rotation is, unless the method was taken away meanwhile."""

        def write(tx: Transaction) -> None:
            if identity.config(tx, mount.accessor):
                rotations.put(tx, mount.accessor, state)

        await self._store.write(write)

    async def _advance(
        self,
        mount: Mount,
        states: tuple[Rotation, Rotation],
        text: str,
        also: Callable[[Transaction], None] = lambda tx: None,
    ) -> bool:
        """Note that a step was done, and in the audit what it did.

        Tells whether it counts: who has written the configuration meanwhile has ended the rotation.
        """
        before, after = states
        entry = AuditEntry(
            time=self._clock.now(), method="", path=f"/v1/auth/{mount.path}rotate-root", reason=text
        )

        def write(tx: Transaction) -> bool:
            if rotations.find(tx, mount.accessor) != before:
                return False
            also(tx)
            rotations.put(tx, mount.accessor, after)
            audit.add(tx, entry)
            return True

        counts = await self._store.write(write)
        log.info("%s: %s%s", mount.path, text, "" if counts else ", too late")
        return counts

    # ---- the task

    async def tend(self) -> None:
        """Do what is to be done, for ever."""
        while True:
            async with unless_full("rotations wait"):
                await self.tend_once()
            await trio.sleep(_ROUND)

    async def tend_once(self) -> None:
        """Do the next step of each rotation, and begin those that are due."""
        async with trio.open_nursery() as nursery:
            for accessor in self._store.read(identity.configured):
                mount = self._store.read(partial(mounts.by_accessor, accessor=accessor))
                config = self._store.read(partial(identity.config, mount=accessor))
                if mount and config:
                    nursery.start_soon(self._tend_mount, mount, config)

    async def _tend_mount(self, mount: Mount, config: MethodConfig) -> None:
        async with self._alone(mount):
            known, now = self._known(mount), self._clock.now()
            if known is None:
                if config.rotation_period or config.rotation_schedule:
                    await self._note(mount, Rotation(since=now))
                return
            if known.try_again_at > now:
                return
            try:
                with trio.fail_after(_LONGEST_STEP):
                    await self._step(mount, config, known, now)
            except StewardError as error:
                await self._failed(mount, str(error))
            except trio.TooSlowError:
                await self._failed(mount, "the cloud did not answer in time")

    async def _step(self, mount: Mount, config: MethodConfig, state: Rotation, now: int) -> None:
        age = now - state.pending_since
        if state.pending and state.failures and age >= GIVE_UP:
            await self._give_up(mount, state)
        elif state.pending and age >= SETTLES:
            await self._put_to_use(mount, state)
        elif state.unclean:
            await self._clean_up(mount, state)
        elif not state.pending and is_due(config, state, now):
            await self._begin(mount)

    async def _failed(self, mount: Mount, problem: str) -> None:
        log.warning("%s: rotation of the client secret: %s", mount.path, problem)
        now = self._clock.now()

        def write(tx: Transaction) -> None:
            if known := rotations.find(tx, mount.accessor):
                rotations.put(tx, mount.accessor, failed(known, problem, now))

        await self._store.write(write)


def is_due(config: MethodConfig, state: Rotation, now: int) -> bool:
    """Tell whether it is time for a new secret."""
    if config.disable_automated_rotation:
        return False
    last = max(state.rotated_at, state.since)
    if config.rotation_period:
        return now - last >= config.rotation_period * SECOND
    if not config.rotation_schedule:
        return False
    due = cron.next_after(config.rotation_schedule, last)
    window = config.rotation_window * SECOND
    while due is not None and window and due + window < now:
        due = cron.next_after(config.rotation_schedule, due)
    return due is not None and due <= now


def failed(state: Rotation, problem: str, now: int) -> Rotation:
    """Return a rotation that waits after a step that failed, longer each time."""
    failures = min(state.failures + 1, 12)
    pause = min(_LONGEST_BACKOFF, 15 * SECOND * 2**failures)
    return msgspec.structs.replace(
        state, problem=problem, failures=failures, try_again_at=now + pause
    )


def _mark(mount: Mount) -> str:
    """Return how the names of the secrets begin that are made here for a mount."""
    return f"steward-{mount.accessor}-"


def _is_ours(mount: Mount, password: Password) -> bool:
    return (password.display_name or "").startswith(_mark(mount))
