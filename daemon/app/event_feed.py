"""Events in wire form, encoded once for all clients that read at the same time.

The row of an event contains only the change. Nomad's clients expect the whole job or allocation in
the payload, so the feed adds it when it reads the event. Events for purged objects contain only
names.
"""

from collections import OrderedDict

import msgspec
import trio

from storage.errors import StorageUnreadable
from storage.loop_share import LongRead
from storage.queries import allocations, events, jobs
from storage.queries.events import StoredEvent
from storage.read_pool import ReadSnapshot
from storage.records import allocation_views
from storage.records.allocation import AllocationChange
from storage.records.base import Record
from storage.records.codec import encode
from storage.store import Store

PAGE = 64  # events encoded together; the events of one write are never separated, even beyond this
SHORT = 2  # events encoded on the event loop: each takes up to a millisecond
_KEPT_BYTES = 4 * 1024 * 1024  # bytes of encoded events that are cached for other readers
_APART = 700  # bytes of an encoded event besides its texts


class EncodedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it is sent, with the fields that filters use."""

    event: StoredEvent
    wire: bytes

    @property
    def size(self) -> int:
        """Return the approximate memory use in bytes."""
        return len(self.wire) + len(self.event.payload) + _APART


class _Wire(Record, frozen=True, kw_only=True):
    topic: str
    type: str
    key: str
    namespace: str
    filter_keys: list[str] | None
    index: int
    payload: msgspec.Raw


class EventFeed:
    """The events of a store, with the last encoded ones cached in wire form.

    With `is_brief`, events have no payload. Encoding them reads no other table.
    """

    def __init__(self, *, is_brief: bool = False) -> None:
        self._is_brief = is_brief
        self._made: OrderedDict[int, EncodedEvent] = OrderedDict()
        self._bytes = 0
        # an event number, and the store's commit at which no later event existed
        self._nothing_after = (-1, -1)
        # held while a thread encodes; waiting readers then find the result in the cache
        self._making = trio.Lock()

    async def after(self, store: Store, number: int) -> list[EncodedEvent]:
        """Return the next events after a number; empty if there are none.

        The result contains all or none of the events of a write.
        """
        encoded_events = self._cached_after(number)
        commits = store.commits
        if encoded_events or self._nothing_after == (number, commits):
            return encoded_events
        try:
            encoded = store.read_short(lambda db: self._encode_after(db, number))
        except LongRead:
            async with self._making:
                if encoded_events := self._cached_after(number):
                    return encoded_events
                encoded = await store.read_long(lambda db: self._encode_after(db, number))
        for event in encoded:
            self._cache(event)
        if not encoded:
            self._nothing_after = (number, commits)
        return encoded

    def _cached_after(self, number: int) -> list[EncodedEvent]:
        encoded_events: list[EncodedEvent] = []
        while (encoded_event := self._made.get(number + len(encoded_events) + 1)) is not None:
            encoded_events.append(encoded_event)
        return encoded_events

    def _cache(self, encoded_event: EncodedEvent) -> None:
        """Cache an event, and drop the oldest events while the cache exceeds its size limit."""
        number = encoded_event.event.number
        if number in self._made:  # another reader encoded it at the same time
            return
        self._made[number] = encoded_event
        self._bytes += encoded_event.size
        while self._bytes > _KEPT_BYTES:
            _, oldest = self._made.popitem(last=False)
            self._bytes -= oldest.size

    def _encode_after(self, db: ReadSnapshot, number: int) -> list[EncodedEvent]:
        """Encode the events after a number. On the event loop, raise `LongRead` if there are many."""
        stored_events = events.after(db, number, PAGE)
        if db.is_short and len(stored_events) > (PAGE if self._is_brief else SHORT):
            raise LongRead
        return [
            _encode(event, b"null" if self._is_brief else _payload(db, event))
            for event in stored_events
        ]


def _encode(event: StoredEvent, payload: bytes) -> EncodedEvent:
    wire = _Wire(
        topic=event.topic,
        type=event.type,
        key=event.key,
        namespace=event.namespace,
        filter_keys=event.filter_keys or None,
        index=event.index,
        payload=msgspec.Raw(payload),
    )
    # The copy is needed: the encoder's buffer has unused space at its end, which would be cached
    # too.
    return EncodedEvent(event=event, wire=bytes(memoryview(encode(wire))))


def _payload(db: ReadSnapshot, event: StoredEvent) -> bytes:
    if event.topic == "Allocation":
        return b'{"Allocation":' + _allocation(db, event) + b"}"
    if event.topic == "Job":
        return _job(db, event)
    return event.payload.encode()


class _Version(Record, frozen=True, kw_only=True):
    version: int | None = None


def _job(db: ReadSnapshot, event: StoredEvent) -> bytes:
    number = msgspec.json.decode(event.payload, type=_Version).version
    if number is None:  # after a purge, only the event still has data of the job
        return event.payload.encode()
    document = None
    try:
        document = jobs.registered_wire(db, event.namespace, event.key, number)
    except StorageUnreadable as error:  # the event is sent with the names alone
        db.unreadable_rows.note(error)
    if document is None:
        document = encode({"ID": event.key, "Namespace": event.namespace, "Version": number})
    return b'{"Job":' + document + b"}"


def _allocation(db: ReadSnapshot, event: StoredEvent) -> bytes:
    change = msgspec.json.decode(event.payload, type=AllocationChange)
    document = None
    try:
        document = _current(db, event, change)
    except StorageUnreadable as error:  # the event is sent with the names alone
        db.unreadable_rows.note(error)
    if document is not None:
        return document
    names = {
        "ID": event.key,
        "Namespace": event.namespace,
        "JobID": event.filter_keys[0],
        "DesiredStatus": change.desired_status,
        "ClientStatus": change.client_status,
        "ModifyIndex": event.index,
    }
    return encode(names)


def _current(db: ReadSnapshot, event: StoredEvent, change: AllocationChange) -> bytes | None:
    """Return an allocation as it was after a change, or None if it was deleted."""
    now = allocations.find(db, event.key)
    if now is None:
        return None
    then = msgspec.structs.replace(now, **msgspec.structs.asdict(change), modify_index=event.index)
    job = jobs.version(db, now.namespace, now.job_id, now.job_version)
    return encode(
        allocation_views.allocation_view(then, allocations.task_states(db, then), job, b"null")
    )
