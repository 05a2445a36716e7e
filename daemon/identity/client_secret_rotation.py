"""Rotation of the client secret: create a new secret, test it, use it, and delete the old secret.

Each step is stored before the next step begins. If the daemon stops between two steps, it still has
a valid secret, and it continues after its restart. A directory accepts a new secret only after a
while. Therefore Steward uses a new secret only after it has obtained a token with this secret.
Secrets that Steward did not create stay, unless the configuration says otherwise. Each mount runs
one step at a time. The result of a step is discarded if the state of the rotation has changed since
the step began. The audit log records each step.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import trio

from daemon.acl.seal import EnvelopeCipher
from daemon.clock import Clock
from daemon.fences import Fences
from daemon.identity.credentials import AccessTokenCache, CloudClient
from daemon.identity.directory_graph import AppPassword, DirectoryGraph
from daemon.identity.method_config import client_secret_path, pending_secret_path
from daemon.jobspec import cron
from storage.errors import Refused, StewardError
from storage.queries import audit, identity, mounts, rotations, secrets
from storage.queries.mounts import MountName
from storage.records.audit import AuditEntry
from storage.records.base import MINUTE, SECOND
from storage.records.identity import MethodConfig, Mount, Rotation
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

log = logging.getLogger("steward.identity.rotation")
_CHANGED = "the configuration was changed in the meantime"
_FENCED = "rotation"

SETTLES = 60 * SECOND  # the directory rarely accepts a new secret sooner
GIVE_UP = 60 * MINUTE  # a new secret that does not work by then is deleted
_LONGEST_STEP = 300.0  # seconds, all attempts together
_ROUND = 15.0  # seconds between checks for due steps
_LONGEST_BACKOFF = 60 * MINUTE


class ClientSecretRotator:
    """Rotates the client secrets of all mounts."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        seal: EnvelopeCipher,
        ids: Iterator[str],
        credentials: AccessTokenCache,
        graph: DirectoryGraph,
        client_of: Callable[[Mount], CloudClient],
        fences: Fences | None = None,
    ) -> None:
        self._fences = fences or Fences(clock)
        self._store = store
        self._clock = clock
        self._seal = seal
        self._ids = ids
        self._credentials = credentials
        self._graph = graph
        self._client_of = client_of
        self._under_way: dict[str, trio.Lock] = {}  # locks by mount accessor

    def state(self, mount: Mount) -> Rotation:
        """Return the state of a mount's rotation."""
        return self._known(mount) or Rotation(since=self._clock.now())

    def _known(self, mount: Mount) -> Rotation | None:
        return self._store.read(partial(rotations.find, mount=mount.accessor))

    def _lock_of(self, mount: Mount) -> trio.Lock:
        return self._under_way.setdefault(mount.accessor, trio.Lock())

    # ---- the steps

    async def begin(self, mount: Mount) -> None:
        """Create a client secret. It replaces the current secret after a successful test.

        Raises `Refused`.
        """
        if self._store.read(partial(identity.config, mount=mount.accessor)) is None:
            raise Refused("config is nil")
        async with self._lock_of(mount):
            await self._begin(mount)

    async def _begin(self, mount: Mount) -> None:
        client = self._client_of(mount)
        if not (client.secret or client.settings.environment_secret):
            raise Refused("this method has no client secret, so there is nothing to rotate")
        application = await self._graph.application(client)
        now = self._clock.now()
        ttl = client.settings.config.root_password_ttl or MethodConfig().root_password_ttl
        ends_at = now + ttl * SECOND
        name = f"{_mark(mount)}{next(self._ids)}"
        before = self.state(mount)
        # If the daemon stops before it has stored the new secret, a later round finds the secret by
        # this name and removes it.
        marked = msgspec.structs.replace(before, unclean=True, attempt=name)
        if not await self._store_state(mount, marked, client.settings.config):
            raise Refused(_CHANGED)
        password = await self._graph.add_password(client, application, name, ends_at)
        path = pending_secret_path(mount)
        sealed = self._seal.seal((password.secret_text or "").encode(), path)
        state = msgspec.structs.replace(
            before,
            pending=password.key_id,
            pending_since=now,
            pending_ends_at=ends_at,
            attempt=name,
            problem="",
            failures=0,
            try_again_at=0,
        )
        text = f"a new client secret was created ({password.key_id})"
        if not await self._advance(
            mount, (marked, state), text, lambda tx: secrets.put(tx, path, sealed)
        ):
            raise Refused(_CHANGED)

    async def _activate(self, mount: Mount, state: Rotation) -> None:
        """Obtain a token with the new secret, then put the secret into use. Raises `Refused`."""
        sealed = self._store.read(partial(secrets.find, path=pending_secret_path(mount)))
        if sealed is None:
            raise Refused(
                "the new client secret is not in the store: it will be deleted from the directory"
            )
        plain = self._seal.unseal(sealed, pending_secret_path(mount))
        client = msgspec.structs.replace(self._client_of(mount), secret=plain.decode())
        await self._credentials.granted(client, client.settings.endpoints.audience)
        path = client_secret_path(mount)
        in_place, now = self._seal.seal(plain, path), self._clock.now()

        def write(tx: Transaction) -> None:
            secrets.put(tx, path, in_place)
            secrets.remove(tx, pending_secret_path(mount))
            if config := identity.config(tx, mount.accessor):
                expiring = msgspec.structs.replace(
                    config, root_password_expires_at=state.pending_ends_at
                )
                identity.put_config(tx, mount.accessor, expiring)

        done = Rotation(since=state.since, current=state.pending, unclean=True, rotated_at=now)
        text = f"the new client secret works and is in use ({state.pending})"
        await self._advance(mount, (state, done), text, write)
        self._credentials.forget(mount.accessor)

    async def _clean_up(self, mount: Mount, state: Rotation) -> None:
        """Remove the secrets that are no longer in use. Raises `Refused`."""
        client = self._client_of(mount)
        application = await self._graph.application(client)
        # Steward knows whether a secret is in use only if it created the secret.
        removes_all = client.settings.config.remove_foreign_passwords and bool(state.current)
        removed = []
        for password in application.password_credentials:
            if password.key_id in (state.current, state.pending):
                continue
            if removes_all or _is_unused(mount, state, password):
                await self._graph.remove_password(client, application, password.key_id)
                removed.append(password.key_id)
            else:
                log.warning(
                    "%s: keeping a client secret that may be in use (%s)",
                    mount.path,
                    password.key_id,
                )
        clean = msgspec.structs.replace(state, unclean=False, problem="")
        text = f"old client secrets were removed: {', '.join(removed) or 'none'}"
        await self._advance(mount, (state, clean), text)

    async def _give_up(self, mount: Mount, state: Rotation) -> None:
        """Delete a new secret that never worked; the old secret stays in use."""
        without = msgspec.structs.replace(state, pending="", unclean=True)
        text = f"the new client secret does not work and is removed ({state.pending})"
        await self._advance(
            mount, (state, without), text, lambda tx: secrets.remove(tx, pending_secret_path(mount))
        )

    async def _store_state(self, mount: Mount, state: Rotation, config: MethodConfig) -> bool:
        """Store the state of a rotation with this configuration. Return whether it was stored.

        It is not stored if the configuration was changed or deleted in the meantime.
        """

        def write(tx: Transaction) -> bool:
            if identity.config(tx, mount.accessor) != config:
                return False
            rotations.put(tx, mount.accessor, state)
            return True

        return await self._store.write(write)

    async def _advance(
        self,
        mount: Mount,
        states: tuple[Rotation, Rotation],
        text: str,
        also: Callable[[Transaction], None] = lambda tx: None,
    ) -> bool:
        """Record a completed step in the store and in the audit log.

        Return False, and record nothing, if the state of the rotation has changed since the step
        began. `states` are the states before and after the step. `text` describes the step for the
        audit log. `also` writes further changes in the same transaction.
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
        log.info(
            "%s: %s%s",
            mount.path,
            text,
            "" if counts else ", but the configuration was changed in the meantime",
        )
        return counts

    # --- background task ---

    async def run(self) -> None:
        """Run the due steps of all rotations periodically. Never return."""
        while True:
            async with tolerate_disk_full("rotations of client secrets are delayed"):
                await self.run_once()
            await trio.sleep(_ROUND)

    async def run_once(self) -> None:
        """Run the next step of each rotation, and begin the rotations that are due."""
        async with trio.open_nursery() as nursery:
            configured = frozenset(self._store.read(identity.configured))
            for name in self._store.read(mounts.names):
                if name.accessor in configured:
                    nursery.start_soon(self._advance_mount, name)

    async def _advance_mount(self, name: MountName) -> None:
        with self._fences.unless_paused(_FENCED, name.path) as has_turn:
            if not has_turn:
                return
            mount = self._store.read(partial(mounts.by_accessor, accessor=name.accessor))
            config = self._store.read(partial(identity.config, mount=name.accessor))
            if mount and config:
                await self._rotate_if_due(mount, config)

    async def _rotate_if_due(self, mount: Mount, config: MethodConfig) -> None:
        async with self._lock_of(mount):
            rotation, now = self._known(mount), self._clock.now()
            if rotation is None:
                if config.rotation_period or config.rotation_schedule:
                    await self._store_state(mount, Rotation(since=now), config)
                return
            if rotation.try_again_at > now:
                return
            try:
                with trio.fail_after(_LONGEST_STEP):
                    await self._step(mount, config, rotation, now)
            except StewardError as error:
                await self._failed(mount, str(error))
            except trio.TooSlowError:
                await self._failed(mount, "the cloud did not answer in time")

    async def _step(self, mount: Mount, config: MethodConfig, state: Rotation, now: int) -> None:
        age = now - state.pending_since
        if state.pending and state.failures and age >= GIVE_UP:
            await self._give_up(mount, state)
        elif state.pending and age >= SETTLES:
            await self._activate(mount, state)
        elif state.unclean:
            await self._clean_up(mount, state)
        elif not state.pending and is_due(config, state, now):
            await self._begin(mount)

    async def _failed(self, mount: Mount, problem: str) -> None:
        log.warning("%s: a step of the client secret's rotation failed: %s", mount.path, problem)
        now = self._clock.now()

        def write(tx: Transaction) -> None:
            if rotation := rotations.find(tx, mount.accessor):
                rotations.put(tx, mount.accessor, failed(rotation, problem, now))

        await self._store.write(write)


def is_due(config: MethodConfig, state: Rotation, now: int) -> bool:
    """Return whether a rotation is due."""
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
    """Return a rotation's state after a failed step.

    The pause before the next attempt grows with each failure.
    """
    failures = min(state.failures + 1, 12)
    pause = min(_LONGEST_BACKOFF, 15 * SECOND * 2**failures)
    return msgspec.structs.replace(
        state, problem=problem, failures=failures, try_again_at=now + pause
    )


def _mark(mount: Mount) -> str:
    """Return the name prefix of the client secrets that Steward creates for a mount."""
    return f"steward-{mount.accessor}-"


def _is_unused(mount: Mount, state: Rotation, password: AppPassword) -> bool:
    """Return whether Steward created a secret that is neither in use nor pending.

    `password` is neither the known current secret nor the pending one. If the current secret is not
    known, each secret of Steward may be the one in use, except the one that it requested last.
    """
    name = password.display_name or ""
    return name.startswith(_mark(mount)) if state.current else bool(name) and name == state.attempt
