"""The event stream delivers the requested, permitted events without loss."""

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon.acl.check import KNOWN, Caller
from daemon.api.cluster import events as stream
from daemon.app import event_feed as feeding
from daemon.app.event_feed import EventFeed
from daemon.web import stream_auth
from daemon.web.request import Request
from daemon.web.stream_auth import StreamSubscriber
from storage.errors import Malformed
from storage.queries import allocations, evaluations, events, jobs, nodes
from storage.queries import tokens as stored
from storage.queries.events import StoredEvent
from storage.read_pool import ReadSnapshot
from storage.records.acl import Token
from storage.store import Store
from storage.writer import Transaction
from tests.parts.api.requests import caller, request
from tests.parts.api.test_unreadable_rows import change
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, evaluation, job
from tests.unit.scheduler.world import node

READER = 'namespace "default" { policy = "read" }'


async def begun(store: Store, *names: str, namespace: str = "default") -> list[int]:
    """Register jobs; return the indexes."""
    made = [job(name, namespace=namespace) for name in names]
    stored = [await store.write(partial(jobs.append_version, job=item)) for item in made]
    return [item.job_modify_index for item in stored]


class Reading:
    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._lines = list[bytes]()

    async def line(self) -> Any:
        with trio.fail_after(20):
            if not self._lines:
                self._lines = (await anext(self._pieces)).splitlines()
        return json.loads(self._lines.pop(0))

    async def events(self) -> list[Any]:
        """Return the events of the next line that contains events."""
        while not (line := await self.line()):
            pass
        return line["Events"]

    async def keys(self, count: int) -> list[str]:
        found: list[str] = []
        while len(found) < count:
            found += [event["Key"] for event in await self.events()]
        return found


@asynccontextmanager
async def reading(
    store: Store, query: str = "", who: Caller | None = None
) -> AsyncIterator[Reading]:
    async with following(request(store, KNOWN, who or caller(), query=query)) as opened:
        yield opened


@asynccontextmanager
async def following(asked: Request) -> AsyncIterator[Reading]:
    reply = await stream.stream(asked)
    assert reply.stream is not None
    opened = Reading(reply.stream)
    assert await opened.line() == {}
    try:
        yield opened
    finally:
        await reply.stream.aclose()


async def test_registration_event_contains_the_job(store: Store) -> None:
    (index,) = await begun(store, "web")
    async with reading(store, "topic=Job") as opened:
        line = await opened.line()
    (event,) = line["Events"]
    assert line["Index"] == event["Index"] == index
    assert event["Payload"]["Job"]["ID"] == "web"
    shown = {name: event[name] for name in ("Topic", "Type", "Key", "Namespace", "FilterKeys")}
    assert shown == {
        "Topic": "Job",
        "Type": "JobRegistered",
        "Key": "web",
        "Namespace": "default",
        "FilterKeys": None,
    }


async def test_event_of_an_unreadable_job_lacks_only_its_definition(store: Store) -> None:
    await begun(store, "a", "b")
    change(store, "UPDATE job_versions SET document = '{' WHERE job_id = 'a'")
    async with reading(store, "topic=Job") as opened:
        found = [event for _ in range(2) for event in await opened.events()]
    assert [event["Key"] for event in found] == ["a", "b"]
    assert found[0]["Payload"] == {"Job": {"ID": "a", "Namespace": "default", "Version": 0}}


async def test_event_of_an_unreadable_allocation_lacks_only_its_fields(store: Store) -> None:
    cluster = Cluster(store)
    await cluster.join()
    await cluster.register(job("web"))
    await cluster.work()
    damage = "UPDATE allocations SET placement = '{'"
    change(store, damage)
    async with reading(store, "topic=Allocation") as opened:
        (event, *_) = await opened.events()
    assert event["Payload"]["Allocation"].keys() >= {"ID", "ClientStatus"}


async def test_event_stream_resumes_from_any_index(store: Store) -> None:
    indexes = await begun(store, "a", "b", "c")
    async with reading(store, f"topic=Job&index={indexes[1]}") as opened:
        assert await opened.keys(2) == ["b", "c"]


async def test_stream_sends_events_that_arrive_later(store: Store) -> None:
    async with reading(store, "topic=Job") as opened, trio.open_nursery() as nursery:
        nursery.start_soon(begun, store, "late")
        assert await opened.keys(1) == ["late"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("topic=Job:b", ["b"]),
        ("topic=Job:a&topic=Job:c", ["a", "c"]),
        ("topic=*:b", ["b", "e1"]),
        ("topic=Evaluation:b", ["e1"]),
        ("topic=Evaluation:e1", ["e1"]),
        ("topic=Job", ["a", "b", "c"]),
        ("", ["a", "b", "c", "e1"]),
    ],
)
async def test_topics_and_keys_choose_events(store: Store, query: str, expected: list[str]) -> None:
    await begun(store, "a", "b", "c")
    await store.write(lambda tx: evaluations.put(tx, evaluation(job("b")), NOW))
    async with reading(store, query) as opened:
        assert await opened.keys(len(expected)) == expected


async def test_events_of_another_namespace_are_sent_on_request(store: Store) -> None:
    await begun(store, "theirs", namespace="team")
    await begun(store, "ours")
    async with reading(store, "topic=Job&namespace=team") as opened:
        assert await opened.keys(1) == ["theirs"]
    async with reading(store, "topic=Job&namespace=*") as opened:
        assert await opened.keys(2) == ["theirs", "ours"]


async def test_reader_gets_only_visible_events(store: Store) -> None:
    await store.write(lambda tx: nodes.put(tx, node(), "NodeRegistration"))
    await begun(store, "theirs", namespace="team")
    await begun(store, "ours")
    async with reading(store, "namespace=*", caller(READER)) as opened:
        assert await opened.keys(1) == ["ours"]
    async with reading(store, "namespace=*", caller('node { policy = "read" }')) as opened:
        (event,) = await opened.events()
        assert event["Topic"] == "Node"


async def test_event_stream_sends_heartbeats(store: Store, autojump_clock: object) -> None:
    async with reading(store, "topic=Nope") as opened:
        before = trio.current_time()
        assert await opened.line() == {}
        assert trio.current_time() - before == stream.HEARTBEAT


async def test_writes_without_a_selected_event_do_not_delay_heartbeats(
    store: Store, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_allowed(_: StreamSubscriber) -> bool:
        return True

    monkeypatch.setattr(StreamSubscriber, "is_allowed", is_allowed)
    pieces = list[bytes]()

    async def receive(lines: AsyncIterator[bytes]) -> None:
        async for piece in lines:
            pieces.append(piece)

    reply = await stream.stream(request(store, KNOWN, caller(), query="topic=Node"))
    assert reply.stream is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive, reply.stream)
        for name in ("a", "b", "c"):
            await begun(store, name)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(stream.HEARTBEAT / 2 + 0.1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert pieces == [b"{}\n"] * 2
    await reply.stream.aclose()


async def test_writes_while_a_stream_gathers_arrive_together(
    store: Store, mock_clock: trio.testing.MockClock
) -> None:
    reply = await stream.stream(request(store, KNOWN, caller(), query="topic=Job&gather=500ms"))
    assert reply.stream is not None
    assert await anext(reply.stream) == b"{}\n"
    pieces = list[bytes]()

    async def receive(lines: AsyncIterator[bytes]) -> None:
        pieces.append(await anext(lines))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive, reply.stream)
        await trio.testing.wait_all_tasks_blocked()
        for name in ("a", "b", "c"):
            await begun(store, name)
            await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(0.4)
        await trio.testing.wait_all_tasks_blocked()
        assert pieces == []
        mock_clock.jump(0.2)
    keys = [json.loads(line)["Events"][0]["Key"] for line in pieces[0].splitlines()]
    assert keys == ["a", "b", "c"]
    await reply.stream.aclose()


async def test_a_gap_is_an_event(store: Store) -> None:
    indexes = await begun(store, "a", "b", "c")
    await store.write(lambda tx: events.trim(tx, 1, 100))
    async with reading(store, f"topic=Job&index={indexes[0]}") as opened:
        (gap,) = await opened.events()
        assert (gap["Topic"], gap["Type"]) == ("Gap", "EventsCollected")
        assert gap["Payload"]["Gap"] == {"FirstIndex": indexes[0], "LastIndex": indexes[1]}
        assert await opened.keys(1) == ["c"]


async def test_stream_from_the_first_stored_event_has_no_gap(store: Store) -> None:
    indexes = await begun(store, "a", "b", "c")
    await store.write(lambda tx: events.trim(tx, 1, 100))
    async with reading(store, f"topic=Job&index={indexes[2]}") as opened:
        assert await opened.keys(1) == ["c"]


async def test_reader_overtaken_by_the_collection_is_notified(store: Store) -> None:
    await begun(store, "a")
    async with reading(store, "topic=Job") as opened:
        assert await opened.keys(1) == ["a"]
        await begun(store, "b", "c")
        await store.write(lambda tx: events.trim(tx, 1, 100))
        (gap,) = await opened.events()
        assert gap["Type"] == "EventsCollected"
        assert await opened.keys(1) == ["c"]


async def test_allocation_event_shows_the_allocation_at_that_time(store: Store) -> None:
    cluster = Cluster(store)
    await cluster.join()
    await cluster.register(job("web"))
    await cluster.work()
    await cluster.run_all()
    async with reading(store, "topic=Allocation:web") as opened:
        (created,), (updated,) = await opened.events(), await opened.events()
    first, second = created["Payload"]["Allocation"], updated["Payload"]["Allocation"]
    assert (first["ClientStatus"], second["ClientStatus"]) == ("pending", "running")
    assert first["ID"] == second["ID"] == created["Key"]
    assert (first["ModifyIndex"], second["ModifyIndex"]) == (created["Index"], updated["Index"])
    assert second["AllocatedResources"]["Tasks"]["main"]["Memory"]["MemoryMB"] == 20


async def test_events_of_purged_objects_contain_only_names(store: Store) -> None:
    cluster = Cluster(store)
    await cluster.join()
    await cluster.register(job("web"))
    await cluster.work()
    (one,) = cluster.allocations()

    def purge(tx: Transaction) -> None:
        found = jobs.current(tx, "default", "web")
        assert found is not None
        jobs.purge(tx, found)

    await store.write(purge)
    assert store.read(lambda db: allocations.find(db, one.id)) is None
    async with reading(store, "topic=Allocation&topic=Job") as opened:
        (registered,) = await opened.events()
        assert registered["Payload"]["Job"]["ID"] == "web"
        (created,) = await opened.events()
        assert created["Payload"]["Allocation"]["JobID"] == "web"
        (purged,) = await opened.events()
        assert purged["Type"] == "JobDeregistered"
        assert purged["Payload"]["Job"]["ID"] == "web"


async def test_stream_ends_with_its_token(store: Store, monkeypatch: Any) -> None:
    monkeypatch.setattr(stream_auth, "RECHECK", 0.0)
    asked = request(store, KNOWN, caller())
    tokens = asked.parts.tokens
    issued = await tokens.issue(Token(accessor="a", policies=("root",), created_at=NOW))
    who = tokens.resolve(issued.secret)
    asked = msgspec.structs.replace(asked, token=issued.secret, caller=who)
    async with following(asked) as opened:
        await begun(store, "a")
        assert await opened.keys(1) == ["a"]
        await store.write(lambda tx: stored.remove(tx, "a"))
        with pytest.raises(StopAsyncIteration):
            await opened.line()


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("topic=Job:a:b", "Invalid topic query: error parsing topics: Invalid key value pair"),
        ("index=x", 'Unable to parse index: strconv.Atoi: parsing "x": invalid syntax'),
        ("index=99999999999999999999", "value out of range"),
        ("gather=x", "gather = 'x' must be a duration of at most 10s, such as 250ms"),
        ("gather=-1s", "gather = '-1s' must be a duration of at most 10s"),
        ("gather=10001ms", "gather = '10001ms' must be a duration of at most 10s"),
    ],
)
async def test_unreadable_parameter_of_a_stream_is_named(
    store: Store, query: str, text: str
) -> None:
    with pytest.raises(Malformed, match=text):
        await stream.stream(request(store, KNOWN, caller(), query=query))


async def test_thousand_idle_readers_share_one_read_of_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(store, "a")
    feed, looks = EventFeed(), list[int]()
    last = (await feed.after(store, 0))[-1].event.number
    look = events.after

    def counted(db: ReadSnapshot, number: int, most: int) -> list[StoredEvent]:
        looks.append(number)
        return look(db, number, most)

    monkeypatch.setattr(events, "after", counted)
    assert [await feed.after(store, last) for _ in range(1000)] == [[]] * 1000
    assert looks == [last]
    await begun(store, "b")
    assert [len(await feed.after(store, last)) for _ in range(1000)] == [1] * 1000
    assert looks == [last, last]


async def test_readers_that_lag_behind_share_the_encoded_events(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(store, *"abcdef")
    feed, made = EventFeed(), list[int]()
    make = feeding._encode

    def noted(event: StoredEvent, payload: bytes) -> feeding.EncodedEvent:
        made.append(event.number)
        return make(event, payload)

    monkeypatch.setattr(feeding, "_encode", noted)
    (newest,) = await feed.after(store, 5)
    assert [item.event.number for item in await feed.after(store, 0)] == [1, 2, 3, 4, 5, 6]
    encoded = len(made)
    assert [item.event.number for item in await feed.after(store, 0)] == [1, 2, 3, 4, 5, 6]
    assert len(made) == encoded
    assert await feed.after(store, 5) == [newest]


async def test_brief_events_have_no_payload_and_read_no_objects(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(store, "web")
    monkeypatch.setattr(feeding, "_payload", None)
    async with reading(store, "topic=Job&brief=true") as opened:
        (event,) = await opened.events()
    assert (event["Key"], event["Payload"]) == ("web", None)
    with pytest.raises(Malformed, match="brief = 'perhaps' must be true or false"):
        await stream.stream(request(store, KNOWN, caller(), query="brief=perhaps"))


async def test_thousand_waiting_readers_share_events_encoded_in_a_thread(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list(map(str, range(20)))
    await begun(store, *names)
    feed, made = EventFeed(), list[str]()
    make = feeding._encode

    def noted(event: StoredEvent, payload: bytes) -> feeding.EncodedEvent:
        made.append(threading.current_thread().name)
        return make(event, payload)

    monkeypatch.setattr(feeding, "_encode", noted)
    found = dict[int, list[str]]()

    async def ask(number: int) -> None:
        found[number] = [item.event.key for item in await feed.after(store, 0)]

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(ask, number)
    assert found == dict.fromkeys(range(5), names)
    assert len(made) == len(names)
    assert threading.main_thread().name not in made
