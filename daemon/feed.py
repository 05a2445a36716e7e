"""Events in the form in which readers get them, made once for all who read at the same time.

An event's row holds what changed. What else the peer's clients expect in a payload (the whole
job, the whole allocation) is joined when it is read; of what has been purged since, only names are left.
"""

from collections import OrderedDict

import msgspec

from storage.queries import allocations, events, jobs
from storage.queries.events import Event
from storage.readers import Snapshot
from storage.records import views
from storage.records.allocation import AllocationChange
from storage.records.base import Record
from storage.records.codec import encode
from storage.store import Store

PAGE = 8  # events that are made at a time: a millisecond or two
_KEPT_BYTES = 4 * 1024 * 1024  # of events that were made, for other readers
_APART = 700  # bytes of an event besides its texts


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it is sent, and by what it is chosen."""

    event: Event
    wire: bytes

    @property
    def size(self) -> int:
        """Return about how many bytes it takes to keep it."""
        return len(self.wire) + len(self.event.payload) + _APART


class _Wire(Record, frozen=True, kw_only=True):
    topic: str
    type: str
    key: str
    namespace: str
    filter_keys: list[str] | None
    index: int
    payload: msgspec.Raw


class Feed:
    """The events of a store, and the newest of them ready to be sent."""

    def __init__(self) -> None:
        self._made: OrderedDict[int, Made] = OrderedDict()
        self._bytes = 0
        self._nothing_after = (-1, -1)  # which number, and at which of the store's commits

    def after(self, store: Store, number: int) -> list[Made]:
        """Return some of the events after a number, whole writes; nothing when there are none."""
        found: list[Made] = []
        while (one := self._made.get(number + len(found) + 1)) is not None:
            found.append(one)
        if found or self._nothing_after == (number, store.commits):
            return found
        made = store.read(lambda db: [_make(db, one) for one in events.after(db, number, PAGE)])
        for one in made:
            self._keep(one)
        if not made:
            self._nothing_after = (number, store.commits)
        return made

    def _keep(self, one: Made) -> None:
        """Keep an event for others, unless newer ones are kept: then who reads it is behind."""
        if self._made and one.event.number <= next(reversed(self._made)):
            return
        self._made[one.event.number] = one
        self._bytes += one.size
        while self._bytes > _KEPT_BYTES:
            _, oldest = self._made.popitem(last=False)
            self._bytes -= oldest.size


def _make(db: Snapshot, event: Event) -> Made:
    wire = _Wire(
        topic=event.topic,
        type=event.type,
        key=event.key,
        namespace=event.namespace,
        filter_keys=event.filter_keys or None,
        index=event.index,
        payload=msgspec.Raw(_payload(db, event)),
    )
    # A copy: the encoder leaves room behind what it writes, which would be kept as well.
    return Made(event=event, wire=bytes(memoryview(encode(wire))))


def _payload(db: Snapshot, event: Event) -> bytes:
    if event.topic == "Allocation":
        return b'{"Allocation":' + _allocation(db, event) + b"}"
    if event.topic == "Job":
        return _job(db, event)
    return event.payload.encode()


class _Version(Record, frozen=True, kw_only=True):
    version: int | None = None


def _job(db: Snapshot, event: Event) -> bytes:
    number = msgspec.json.decode(event.payload, type=_Version).version
    if number is None:  # the event of a purge has all that is left of the job
        return event.payload.encode()
    found = jobs.registered_wire(db, event.namespace, event.key, number)
    if found is None:
        found = encode({"ID": event.key, "Namespace": event.namespace, "Version": number})
    return b'{"Job":' + found + b"}"


def _allocation(db: Snapshot, event: Event) -> bytes:
    change = msgspec.json.decode(event.payload, type=AllocationChange)
    now = allocations.find(db, event.key)
    if now is None:
        names = {
            "ID": event.key,
            "Namespace": event.namespace,
            "JobID": event.filter_keys[0],
            "DesiredStatus": change.desired_status,
            "ClientStatus": change.client_status,
            "ModifyIndex": event.index,
        }
        return encode(names)
    then = msgspec.structs.replace(now, **msgspec.structs.asdict(change), modify_index=event.index)
    job = jobs.version(db, now.namespace, now.job_id, now.job_version)
    return encode(views.whole(then, allocations.task_states(db, then), job, b"null"))
