"""The audit log: requests that changed something or were rejected.

A change and its entry are in one transaction, so neither exists without the other. Rejections are
collected and written together, so that many rejected requests cost few writes. If they arrive
faster than they can be written, only their number is stored. Entries contain no secrets. An unknown
secret appears as a keyed hash, so that repeated attempts can be recognized.
"""

import hashlib
import hmac
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

import trio

from daemon.acl.seal import EnvelopeCipher
from daemon.clock import Clock
from daemon.config.settings import Settings
from daemon.fences import Fences
from storage.errors import StorageError, StorageUnavailable
from storage.queries import audit, secrets
from storage.queries.garbage_collection import ANY_NUMBER
from storage.records.audit import AuditEntry
from storage.records.base import HOUR
from storage.store import Store, tolerate_disk_full, write_hook
from storage.writer import Transaction

if TYPE_CHECKING:
    from daemon.acl.audit_sinks import AuditSink

MAX_WAITING = 1000  # limit on rejections that wait to be written
STEP = 500  # rows deleted per write
REFUSED = frozenset({401, 403, 421, 429})
_GATHER = 0.2  # seconds for which rejections are collected before they are written
_TRIM_EVERY = 300  # seconds between deletions of old entries
_KEY = "audit/key"  # path of the hash key among the sealed secrets
_LONGEST = 500  # characters of a path, query or reason that an entry stores
_COMMAND = "command"  # parameter of an exec session; it may contain secrets of its task
_SECRET_NAMES = re.compile(r"token|secret|password|passphrase|jwt|key|credential", re.IGNORECASE)


class Audit:
    """The writer of audit entries. `open_audit` creates it."""

    def __init__(self, store: Store, clock: Clock, key: bytes) -> None:
        self._store, self._clock, self._key = store, clock, key
        self._waiting: list[AuditEntry] = []
        self._dropped = 0
        self._arrived = trio.Event()

    def open_scope(self, method: str, path: str, query: str, address: str) -> "AuditScope":
        """Return the scope in which a new request is audited."""
        return AuditScope(self, self._clock.now(), method, path, query, address)

    def hash(self, secret: str) -> str:
        """Return the keyed hash of a secret, or an empty string for an empty secret."""
        if not secret:
            return ""
        return hmac.new(self._key, secret.encode(), hashlib.sha256).hexdigest()[:32]

    def without_secrets(self, query: str) -> str:
        """Return a query string with keyed hashes instead of values that look like secrets."""
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
        """Write an entry immediately."""
        await self._store.write(lambda tx: audit.add(tx, entry))

    def refused(self, entry: AuditEntry) -> None:
        """Queue the entry of a rejection."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(entry)
        else:
            self._dropped += 1
        self._arrived.set()

    async def write_refusals(self) -> None:
        """Write queued rejections as they arrive, until cancelled."""
        while True:
            await self._arrived.wait()
            await trio.sleep(_GATHER)
            async with tolerate_disk_full("cannot store refused requests in the audit log"):
                await self.flush()

    async def flush(self) -> None:
        """Write the queued entries."""
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

    async def trim(self, retention: int, most_entries: int) -> None:
        """Delete old entries every five minutes.

        Delete entries older than `retention` nanoseconds, and all but the newest `most_entries`.
        """
        while True:
            before = self._clock.now() - retention
            async with tolerate_disk_full("cannot delete old audit entries"):
                step = partial(audit.trim, before=before, most=STEP, most_entries=most_entries)
                while await self._store.write(step):
                    pass
            await trio.sleep(_TRIM_EVERY)


class AuditScope:
    """The audit data of one request, including its result once the result is known.

    Most requests need no entry. So the entry is built only when the audit log stores it.
    """

    def __init__(
        self, audit: Audit, time: int, method: str, path: str, query: str, address: str
    ) -> None:
        self._audit, self._time = audit, time
        self._method, self._path, self._query, self._address = method, path, query, address
        self._namespace = self._secret = self._accessor = self._refusal = ""
        self._masked: str | None = None  # the masked query, once the secrets in it are known
        self._is_noted = False
        self._noted_by: object = None  # the write that contains the entry

    def set_caller(self, namespace: str, secret: str) -> None:
        """Set the request's namespace and secret, even if the secret belongs to no token."""
        self._namespace, self._secret = namespace, secret

    def known(self, accessor: str) -> None:
        """Set the accessor of the authenticated caller, and drop the secret."""
        self._accessor, self._secret = accessor, ""

    def set_query(self, masked: str) -> None:
        """Set the query string to store, in which the secrets of tasks are already masked."""
        self._masked = masked

    def watching(self) -> AbstractContextManager[None]:
        """Return a context in which the first write that changes data also stores the entry."""
        return write_hook(self._write)

    def _write(self, tx: Transaction) -> None:
        # A write may be retried: the first try is then rolled back together with its entry.
        if not self._is_noted or self._noted_by is tx.write:
            self._is_noted, self._noted_by = True, tx.write
            audit.add(tx, self._entry())

    async def acted(self) -> None:
        """Write the entry of an action that changes nothing in the store."""
        if not self._is_noted:
            self._is_noted = True
            await self._audit.add(self._entry())

    def refuses(self, reason: str) -> None:
        """Set the reason for a rejection. `ended` then queues an entry, even with status 200."""
        self._refusal = reason

    def ended(self, status: int, reason: str) -> None:
        """Queue an entry if the request was rejected. Later writes of the request add no entry.

        `reason` is the text of the entry if the handler gave no other reason.
        """
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
            query=_short(self._audit.without_secrets(self._shown_query())),
            namespace=_short(self._namespace),
            status=status,
            reason=_short(reason),
        )

    def _shown_query(self) -> str:
        """Return the query string to store: the masked one if `set_query` was called.

        Otherwise, commands in the query are replaced with their keyed hashes.
        """
        if self._masked is not None:
            return self._masked
        if _COMMAND not in self._query:
            return self._query
        pairs = parse_qsl(self._query, keep_blank_values=True)
        hashed = [
            (name, self._audit.hash(value) if name == _COMMAND else value) for name, value in pairs
        ]
        return urlencode(hashed)


def _short(text: str) -> str:
    """Return a text as one line of limited length."""
    shortened = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    if shortened.isprintable():
        return shortened
    return "".join(char if char.isprintable() else "\ufffd" for char in shortened)


@asynccontextmanager
async def open_audit(
    store: Store, clock: Clock, seal: EnvelopeCipher, config: Settings, fences: Fences | None = None
) -> AsyncIterator[Audit]:
    """Yield the audit log. At the end of the block, write the rejections that are still queued."""
    opened = Audit(store, clock, await _key(store, seal))
    async with trio.open_nursery() as nursery:
        keep_running = (fences or Fences(clock)).keep_running
        nursery.start_soon(keep_running, "audit: refusals", opened.write_refusals)
        trim = partial(
            opened.trim,
            config.audit_retention_days * 24 * HOUR,
            config.audit_retention_entries or ANY_NUMBER,
        )
        nursery.start_soon(keep_running, "audit retention", trim)
        for sink in _sinks(config):
            from daemon.acl.audit_sinks import copy_to  # imported late, as in `_sinks`

            copy = partial(copy_to, store, sink)
            nursery.start_soon(keep_running, f"audit copies by {type(sink).__name__}", copy)
        try:
            yield opened
        finally:
            # no caller is left to report an error to
            with trio.CancelScope(shield=True), suppress(StorageError):
                await opened.flush()
            nursery.cancel_scope.cancel()


def _sinks(config: Settings) -> "Iterator[AuditSink]":
    if config.audit_file == Path() and not config.audit_journal:
        return
    # Imported late: by default, the audit log is only in the store.
    from daemon.acl.audit_sinks import FileAuditSink, JournalAuditSink

    if config.audit_file != Path():
        yield FileAuditSink(config.audit_file)
    if config.audit_journal:
        yield JournalAuditSink()


async def _key(store: Store, seal: EnvelopeCipher) -> bytes:
    """Return the key for hashes of secrets; create it in a new store."""
    sealed = store.read(lambda db: secrets.find(db, _KEY))
    if sealed is not None:
        return seal.unseal(sealed, _KEY)
    key = os.urandom(32)
    fresh = seal.seal(key, _KEY)
    await store.write(lambda tx: secrets.put(tx, _KEY, fresh))
    return key
