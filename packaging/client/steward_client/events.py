"""The event stream, from any index, across reconnections."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar

import anyio

from steward_client.errors import EventsLost, Unreachable
from steward_client.records import Allocation, Deployment, Evaluation, JobDetail
from steward_client.transport import Call, Connection, Lines
from steward_client.wire import Record, convert, decode

T = TypeVar("T")
Topics = Mapping[str, str | Sequence[str]]


class Event(Record, frozen=True, kw_only=True):
    """A change: its topic (`Job`, `Allocation`, …), type, and the key of the object."""

    topic: str
    type: str = ""
    key: str = ""
    namespace: str = ""
    filter_keys: list[str] = []
    index: int = 0
    payload: dict[str, object] = {}

    @property
    def job(self) -> JobDetail | None:
        """Return the job of an event with the topic `Job`, otherwise None."""
        return _object(self, "Job", JobDetail)

    @property
    def allocation(self) -> Allocation | None:
        """Return the allocation of an event with the topic `Allocation`, otherwise None."""
        return _object(self, "Allocation", Allocation)

    @property
    def evaluation(self) -> Evaluation | None:
        """Return the evaluation of an event with the topic `Evaluation`, otherwise None."""
        return _object(self, "Evaluation", Evaluation)

    @property
    def deployment(self) -> Deployment | None:
        """Return the deployment of an event with the topic `Deployment`, otherwise None."""
        return _object(self, "Deployment", Deployment)


def _object(event: Event, topic: str, kind: type[T]) -> T | None:
    payload = event.payload.get(topic) if event.topic == topic else None
    return None if payload is None else convert(payload, kind)


class _Frame(Record, frozen=True, kw_only=True):
    """A line of the stream: the events of one write, or a keep-alive without events."""

    index: int = 0
    events: list[Event] = []


class _Range(Record, frozen=True, kw_only=True):
    first_index: int = 0
    last_index: int = 0


class _Gap(Record, frozen=True, kw_only=True):
    gap: _Range


async def read_events(
    connection: Connection, topics: Topics, *, index: int, namespace: str | None
) -> AsyncGenerator[Event, None]:
    """Yield all events from an index on, each once. Raises the same errors as `read_writes`."""
    async with aclosing(
        read_writes(connection, topics, index=index, namespace=namespace)
    ) as writes:
        async for events in writes:
            for event in events:
                yield event


async def read_writes(
    connection: Connection, topics: Topics, *, index: int, namespace: str | None
) -> AsyncGenerator[list[Event], None]:
    """Yield one list of events per write, from `index` on. Raises `EventsLost`.

    After a disconnection, the stream continues after the last write that was yielded. Raises
    `Unreachable` if the server is still unreachable after all retries.
    """
    reader = _Reader(connection, topics, index, namespace)
    while True:
        try:
            async with aclosing(reader.frames()) as frames:
                async for events in frames:
                    yield events
        except Unreachable as error:
            await reader.wait_after(error)


class _Reader:
    def __init__(
        self, connection: Connection, topics: Topics, index: int, namespace: str | None
    ) -> None:
        self._connection = connection
        self._next = index
        self._query = {"namespace": namespace, "topic": list(_pairs(topics))}
        self._failures = 0
        self._last_sign: float | None = None

    async def frames(self) -> AsyncGenerator[list[Event], None]:
        """Yield the events of each write, without those that were already yielded."""
        query = {**self._query, "index": self._next or None}
        call = Call(method="GET", path="/v1/event/stream", query=query)
        async with self._connection.stream(call) as chunks:
            async for line in Lines(chunks):
                self._failures, self._last_sign = 0, anyio.current_time()
                frame = decode(line, _Frame)
                events = [event for event in frame.events if event.index >= self._next]
                for event in events:
                    _check_gap(event)
                if events:
                    yield events
                    self._next = max(self._next, *(event.index + 1 for event in events))
        raise Unreachable("the server ended the event stream")

    async def wait_after(self, error: Unreachable) -> None:
        """Wait before the next connection. Raise `error` if the time for retries is over."""
        now = anyio.current_time()
        if self._last_sign is None:
            self._last_sign = now
        delay = self._connection.delay(self._failures)
        if error.untrusted or now + delay > self._last_sign + self._connection.retry.within:
            raise error
        self._failures += 1
        await anyio.sleep(delay)


def _pairs(topics: Topics) -> list[str]:
    return [
        f"{topic}:{key}"
        for topic, keys in topics.items()
        for key in ([keys] if isinstance(keys, str) else keys)
    ]


def _check_gap(event: Event) -> None:
    if event.topic == "Gap":
        gap = convert(event.payload, _Gap).gap
        raise EventsLost(gap.first_index, gap.last_index)
