"""The record of who changed what, or was refused it.

A change and its entry are one write: neither is there without the other. Refusals are
gathered and written together, so that whoever knocks at closed doors costs a write now and then,
not one for each knock; of those that come faster than they can be written only the number is
kept. Secrets do not appear; one that is none of ours stands there as a keyed hash, by which two
attempts with the same one can be told.
"""

import hashlib
import hmac
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import trio

from daemon.acl.auditsinks import FileSink, JournalSink, Sink, copy_to
from daemon.acl.seal import Seal
from daemon.clock import Clock
from daemon.config import Config
from storage.errors import StorageError, StorageUnavailable
from storage.queries import audit, secrets
from storage.queries.collection import ANY_NUMBER
from storage.records.audit import AuditEntry
from storage.records.base import HOUR
from storage.store import Store, noting, unless_full
from storage.writer import Transaction

MAX_WAITING = 1000  # refusals that are not written yet
STEP = 500  # rows that one write removes
REFUSED = frozenset({401, 403, 421, 429})
_GATHER = 0.2  # seconds from a refusal to its write
_TRIM_EVERY = 300  # seconds
_KEY = "audit/key"  # where it stands among the secrets
_LONGEST = 500  # characters of a path, a query or a reason
_SECRET_NAMES = re.compile(r"token|secret|password|passphrase|jwt|key|credential", re.IGNORECASE)


class Audit:
    """Where entries go. Made by `open_audit`."""

    def __init__(self, store: Store, clock: Clock, key: bytes) -> None:
        self._store, self._clock, self._key = store, clock, key
        self._waiting: list[AuditEntry] = []
        self._dropped = 0
        self._arrived = trio.Event()

    def begin(self, method: str, path: str, query: str, address: str) -> "Trail":
        """Return the trail of a request that has come in."""
        return Trail(self, self._clock.now(), method, path, query, address)

    def hash(self, secret: str) -> str:
        """Return what stands for a secret; empty for none."""
        if not secret:
            return ""
        return hmac.new(self._key, secret.encode(), hashlib.sha256).hexdigest()[:32]

    def without_secrets(self, query: str) -> str:
        """Return a query in which hashes stand for what sounds like a secret."""
        if not _SECRET_NAMES.search(query):
            return query
        pairs = parse_qsl(query, keep_blank_values=True)
        return urlencode(
            [
                (name, self.hash(value) if _SECRET_NAMES.search(name) else value)
                for name, value in pairs
            ]
        )

    async def add(self, entry: AuditEntry) -> None:
        """Write an entry by itself."""
        await self._store.write(lambda tx: audit.add(tx, entry))

    def refused(self, entry: AuditEntry) -> None:
        """Have a refusal written soon."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(entry)
        else:
            self._dropped += 1
        self._arrived.set()

    async def write_refusals(self) -> None:
        """Write what was refused, again and again."""
        while True:
            await self._arrived.wait()
            await trio.sleep(_GATHER)
            async with unless_full("refusals are not written"):
                await self.flush()

    async def flush(self) -> None:
        """Write what is waiting."""
        self._arrived = trio.Event()
        waiting, self._waiting = self._waiting, []
        dropped, self._dropped = self._dropped, 0
        if dropped:
            waiting.append(
                AuditEntry(
                    time=self._clock.now(),
                    method="",
                    path="",
                    status=403,
                    reason=f"{dropped} more requests were refused at that time",
                )
            )

        def write(tx: Transaction) -> None:
            for entry in waiting:
                audit.add(tx, entry)

        if not waiting:
            return
        try:
            await self._store.write(write)
        except StorageUnavailable:
            self._waiting = [*waiting, *self._waiting]
            self._arrived.set()
            raise

    async def trim(self, retention: int, kept: int) -> None:
        """Remove what is older than `retention` nanoseconds, or beyond the newest `kept`, every five minutes."""
        while True:
            before = self._clock.now() - retention
            async with unless_full("nothing is removed from the audit"):
                step = partial(audit.trim, before=before, most=STEP, kept=kept)
                while await self._store.write(step):
                    pass
            await trio.sleep(_TRIM_EVERY)


class Trail:
    """What is known of one request; in the end, what became of it.

    Most requests leave no entry, so one is put together only when it is written.
    """

    def __init__(
        self, audit: Audit, time: int, method: str, path: str, query: str, address: str
    ) -> None:
        self._audit, self._time = audit, time
        self._method, self._path, self._query, self._address = method, path, query, address
        self._namespace = self._secret = self._accessor = self._refusal = ""
        self._is_noted = False

    def ask(self, namespace: str, secret: str) -> None:
        """Note where the request leads, and that it shows a secret, which may be none of ours."""
        self._namespace, self._secret = namespace, secret

    def known(self, accessor: str) -> None:
        """Note whose request it is."""
        self._accessor, self._secret = accessor, ""

    def watching(self) -> AbstractContextManager[None]:
        """Give a block in which each write notes this request, if it changes something."""
        return noting(self._note)

    def _note(self, tx: Transaction) -> None:
        if not self._is_noted:
            self._is_noted = True
            audit.add(tx, self._entry())

    async def acted(self) -> None:
        """Note that something was done which the store does not see."""
        if not self._is_noted:
            self._is_noted = True
            await self._audit.add(self._entry())

    def refuses(self, reason: str) -> None:
        """Note that the request is refused, whatever the status that says so."""
        self._refusal = reason

    def ended(self, status: int, reason: str) -> None:
        """Note how the request was answered, if it was refused; nothing is noted afterwards."""
        self._is_noted = True
        if status in REFUSED or self._refusal:
            self._audit.refused(self._entry(status, self._refusal or reason))

    def _entry(self, status: int = 200, reason: str = "") -> AuditEntry:
        return AuditEntry(
            time=self._time,
            accessor=self._accessor,
            secret_hash=self._audit.hash(self._secret),
            address=self._address,
            method=self._method,
            path=_short(self._path),
            query=_short(self._audit.without_secrets(self._query)),
            namespace=_short(self._namespace),
            status=status,
            reason=_short(reason),
        )


def _short(text: str) -> str:
    """Return text of a bounded length, in one line."""
    kept = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    if kept.isprintable():
        return kept
    return "".join(char if char.isprintable() else "\ufffd" for char in kept)


@asynccontextmanager
async def open_audit(
    store: Store, clock: Clock, seal: Seal, config: Config
) -> AsyncIterator[Audit]:
    """Give the audit; what was refused until the end of the block is still written."""
    opened = Audit(store, clock, await _key(store, seal))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(opened.write_refusals)
        nursery.start_soon(
            opened.trim,
            config.audit_retention_days * 24 * HOUR,
            config.audit_retention_entries or ANY_NUMBER,
        )
        for sink in _sinks(config):
            nursery.start_soon(copy_to, store, sink)
        try:
            yield opened
        finally:
            with trio.CancelScope(shield=True), suppress(StorageError):  # nobody is left to be told
                await opened.flush()
            nursery.cancel_scope.cancel()


def _sinks(config: Config) -> Iterator[Sink]:
    if config.audit_file != Path():
        yield FileSink(config.audit_file)
    if config.audit_journal:
        yield JournalSink()


async def _key(store: Store, seal: Seal) -> bytes:
    """Return the key of the hashes; a new store gets one."""
    sealed = store.read(lambda db: secrets.find(db, _KEY))
    if sealed is not None:
        return seal.unseal(sealed, _KEY)
    key = os.urandom(32)
    fresh = seal.seal(key, _KEY)
    await store.write(lambda tx: secrets.put(tx, _KEY, fresh))
    return key
