"""Lines, search and following of the logs of a whole job: limits, and the cost for the event
loop."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
import trio

from daemon.acl.check import ANYONE
from daemon.api.cluster import job_log_views
from daemon.config.settings import Settings
from daemon.launcher.messages import Answer, OpenFile
from daemon.launcher.messages import Request as Asked
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Malformed
from storage.queries import allocations, garbage_collection
from storage.records.allocation import Allocation, ClientStatus, DesiredStatus
from storage.records.job import Job
from storage.store import Store
from tests.launchers import Direct
from tests.parts.api.requests import caller, parts_of, request
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, group, job, task
from tests.step_timing import Longest, garbage_as_in_daemon, slowness
from tests.unit.scheduler.world import node

MOST = 5_000_000  # maximum nanoseconds of a step
TRIES = 5
TEXT = 512 * 1024  # maximum bytes of a response to a search
KINDS = ("stdout", "stderr")

Handler = Callable[[Request], Awaitable[HandlerReply]]


class JobLogs:
    """A job whose allocations a test makes, with their logs."""

    def __init__(self, store: Store, directory: Path) -> None:
        self._store, self._config = store, Settings(data_dir=directory)
        self.parts = parts_of(store, self._config, asks=False)
        self._number = 0

    async def register(self, job: Job) -> None:
        cluster = Cluster(self._store)
        await cluster.join(node())
        await cluster.register(job)
        await cluster.work()
        (self._first,) = cluster.allocations(job.id)
        await self.remove(self._first)

    async def add(self, status: ClientStatus = ClientStatus.RUNNING) -> str:
        """Add an allocation; return its ID."""
        self._number += 1
        made = msgspec.structs.replace(
            self._first, id=f"{self._number:08x}-0000-4000-8000-0000000000aa", client_status=status
        )
        await self._store.write(lambda tx: allocations.add(tx, made, NOW))
        return made.id

    async def remove(self, *gone: Allocation | str) -> None:
        """Remove allocations as garbage collection does."""
        for item in gone:
            alloc_id = item if isinstance(item, str) else item.id
            await self.end(alloc_id)
            work = partial(garbage_collection.remove_allocations, ids=[alloc_id])
            assert await self._store.write(work) == 1

    async def end(self, alloc_id: str) -> None:
        """End an allocation."""
        found = self._store.read(partial(allocations.find, allocation_id=alloc_id))
        assert found is not None
        ended = msgspec.structs.replace(
            found, client_status=ClientStatus.COMPLETE, desired_status=DesiredStatus.STOP
        )
        await self._store.write(lambda tx: allocations.set_desired(tx, ended, NOW))
        await self._store.write(lambda tx: allocations.set_client(tx, ended, NOW))

    def print(self, alloc_id: str, data: bytes, name: str = "main", kind: str = "stdout") -> None:
        """Let a task print."""
        file = self._config.alloc_dir / alloc_id / "alloc" / "logs" / f"{name}.{kind}.0"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as more:
            more.write(data)

    async def reply(self, handler: Handler, **query: object) -> HandlerReply:
        asked = request(
            self._store, ANYONE, caller(), query=urlencode(query), job_id=self._first.job_id
        )
        return await handler(msgspec.structs.replace(asked, parts=self.parts))

    async def ask(self, handler: Handler, **query: object) -> Any:
        body = (await self.reply(handler, **query)).body
        assert isinstance(body, bytes)
        return json.loads(body)

    async def follow(self, **query: object) -> AsyncGenerator[bytes, None]:
        stream = (await self.reply(job_log_views.lines, follow="true", **query)).stream
        assert isinstance(stream, AsyncGenerator)
        return stream


@pytest.fixture
def logs(store: Store, tmp_path: Path) -> JobLogs:
    return JobLogs(store, tmp_path / "data")


@pytest.fixture
def searched_seldom() -> Iterator[None]:
    """Collect garbage as rarely as a running daemon."""
    with garbage_as_in_daemon():
        yield


def with_tasks(*names: str, **fields: Any) -> Job:
    return job("web", group("web", *(task(name, **fields) for name in names)))


async def news(stream: AsyncGenerator[bytes, None]) -> Any:
    """Return the next answer that is not empty."""
    while not (found := json.loads(await anext(stream))):
        pass
    return found


HOSTILE = {
    "control characters": (b"\x01" * 12_000 + b"\n") * 40,
    "invalid bytes": (b"\xff" * 12_000 + b"\n") * 40,
    "long lines": (b"x" * 12_000 + b"\n") * 40,
    "short lines": b"x\n" * 100_000,
    "spaced matches": (b"x\n" + b"h\n" * 45) * 3_000,
}


@pytest.mark.usefixtures("searched_seldom")
@pytest.mark.parametrize("data", HOSTILE.values(), ids=[*HOSTILE])
async def test_log_of_a_large_job_does_not_block_the_event_loop(logs: JobLogs, data: bytes) -> None:
    names = ("main", "second", "third")
    await logs.register(with_tasks(*names, env={f"K{i:06}": "v" * 20 for i in range(10_000)}))
    for _ in range(16):
        alloc_id = await logs.add()
        for name in names:
            logs.print(alloc_id, data, name)

    async def follow() -> None:
        async with aclosing(await logs.follow()) as stream:
            for _ in range(3):
                await anext(stream)

    async def body(handler: Handler, **query: object) -> None:
        assert isinstance((await logs.reply(handler, **query)).body, bytes)

    lines, search = job_log_views.lines, job_log_views.search
    asked: Sequence[Callable[[], Awaitable[None]]] = (
        partial(body, lines, lines=1000),
        partial(body, search, contains="x", lines=200, context=20),
        partial(body, search, contains="\x01", lines=200),
        follow,
    )
    for item in asked:
        taken: list[int] = []
        while not taken or (taken[-1] > MOST and len(taken) < TRIES):
            taken.append(await longest(item))
        assert min(taken) <= MOST or min(taken) <= MOST * slowness(), (item, taken)


async def longest(work: Callable[[], Awaitable[None]]) -> int:
    measure = Longest()
    await trio.lowlevel.checkpoint()
    trio.lowlevel.add_instrument(measure)
    try:
        await trio.lowlevel.checkpoint()
        await work()
    finally:
        await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(measure)
    return measure.longest


async def test_search_returns_the_newest_matches_of_all_streams(logs: JobLogs) -> None:
    await logs.register(with_tasks("main"))
    for place in range(5):
        alloc_id = await logs.add()
        for n in range(40):
            time = f"2026-01-01T00:{n:02}:{place:02}Z"
            logs.print(alloc_id, f"{time} needle {n * 5 + place}\n{time} hay\n".encode())
    expected = [str(number) for number in range(200)]
    found: list[str] = []
    before, sizes = "", []
    while True:
        page = await logs.ask(
            job_log_views.search, contains="needle", lines=30, context=1, before=before
        )
        matches = [line["Text"].split()[-1] for line in page["Lines"] if line.get("Matches")]
        sizes.append(len(matches))
        found = [*matches, *found]
        assert found == expected[-len(found) :]
        before = page.get("Before", "")
        if not before:
            break
    assert found == expected
    assert sizes[:6] == [30] * 6


@pytest.mark.parametrize("context", [0, 20])
async def test_search_returns_limited_text_and_continues_without_a_loss(
    logs: JobLogs, context: int
) -> None:
    await logs.register(with_tasks("main"))
    for _ in range(4):
        alloc_id = await logs.add()
        for kind in KINDS:
            text = "".join(f"needle {n} {'x' * 6_000}\n" for n in range(30))
            logs.print(alloc_id, text.encode(), kind=kind)
    found: list[tuple[str, int]] = []
    before = ""
    while True:
        page = await logs.ask(
            job_log_views.search, contains="NEEDLE", lines=200, context=context, before=before
        )
        assert sum(len(line["Text"]) for line in page["Lines"]) <= TEXT
        found += [(line["Log"], line.get("At", 0)) for line in page["Lines"] if "Matches" in line]
        before = page.get("Before", "")
        if not before:
            break
    assert len(found) == len(set(found)) == 4 * 2 * 30


async def test_many_streams_share_the_byte_limit_of_a_page(logs: JobLogs) -> None:
    await logs.register(with_tasks("main"))
    for _ in range(16):
        alloc_id = await logs.add()
        for kind in KINDS:
            logs.print(alloc_id, b"x" * 1_000 + b"\n" + (b"y" * 1_000 + b"\n") * 200, kind=kind)
    page = await logs.ask(job_log_views.lines, lines=1000)
    assert 0 < sum(len(line["Text"]) for line in page["Lines"]) <= 32 * 16 * 1024
    number = len(page["Lines"])
    while before := page.get("Before"):
        page = await logs.ask(job_log_views.lines, lines=1000, before=before)
        number += len(page["Lines"])
    assert number == 32 * 201


class Collecting(Direct):
    """A launcher; during its first response about a directory, allocations are deleted."""

    def __init__(self, directory: Path, collect: Callable[[], Awaitable[None]]) -> None:
        super().__init__(directory)
        self._collect: Callable[[], Awaitable[None]] | None = collect

    async def _request(self, request: Asked, *rest: Any, **more: Any) -> tuple[Answer, list[int]]:
        collect = self._collect
        if collect is not None and isinstance(request, OpenFile):
            self._collect = None
            await collect()
        return await super()._request(request, *rest, **more)


@pytest.mark.parametrize("handler", [job_log_views.lines, job_log_views.search])
async def test_allocation_removed_during_the_request_causes_no_error(
    logs: JobLogs, handler: Handler
) -> None:
    await logs.register(with_tasks("main"))
    made = [await logs.add(ClientStatus.COMPLETE) for _ in range(3)]
    logs.print(made[0], b"text\n")
    collect = partial(logs.remove, *made[1:])
    logs.parts.logs.launcher = Collecting(logs.parts.config.alloc_dir, collect)
    page = await logs.ask(handler, contains="text")
    assert [line["Text"] for line in page["Lines"]] == ["text"]


async def test_allocation_that_is_among_the_newest_again_continues_at_its_offset(
    logs: JobLogs,
) -> None:
    await logs.register(with_tasks("main"))
    made = [await logs.add() for _ in range(16)]
    logs.print(made[0], b"first\n")
    async with aclosing(await logs.follow()) as stream:
        assert [line["Text"] for line in (await news(stream))["Lines"]] == ["first"]
        newest = await logs.add()  # the log omits the oldest allocation now
        logs.print(newest, b"newest\n")
        assert [line["Text"] for line in (await news(stream))["Lines"]] == ["newest"]
        await logs.remove(newest)
        logs.print(made[0], b"second\n")
        assert [line["Text"] for line in (await news(stream))["Lines"]] == ["second"]


async def test_only_whole_allocations_are_selected_and_counted(logs: JobLogs) -> None:
    await logs.register(with_tasks(*(f"task-{number}" for number in range(10))))
    made = [await logs.add() for _ in range(20)]
    for alloc_id in made:
        for number in range(10):
            logs.print(alloc_id, b"text\n", f"task-{number}")
    page = await logs.ask(job_log_views.lines, lines=1000)
    assert {line["Allocation"] for line in page["Lines"]} == set(made[-2:])
    assert len(page["Lines"]) == 20
    assert (page["Allocations"], page["OmittedAllocations"]) == (2, 18)
    page = await logs.ask(job_log_views.search, contains="text", type="stdout", lines=200)
    assert (page["Allocations"], page["OmittedAllocations"]) == (4, 16)
    page = await logs.ask(job_log_views.lines, task="task-3", lines=1000)
    assert {line["Task"] for line in page["Lines"]} == {"task-3"}
    assert (page["Allocations"], page["OmittedAllocations"]) == (16, 4)
    assert "OmittedTasks" not in page


async def test_allocation_with_too_many_tasks_shows_its_first_tasks(logs: JobLogs) -> None:
    await logs.register(with_tasks(*(f"task-{number:02}" for number in range(30))))
    await logs.add()
    page = await logs.ask(job_log_views.lines)
    assert (page["Allocations"], page["OmittedTasks"]) == (1, 6)
    assert "OmittedAllocations" not in page
    assert "OmittedTasks" not in await logs.ask(job_log_views.lines, type="stderr", task="task-29")


LINES, SEARCH = job_log_views.lines, job_log_views.search
CURSOR = "00000001.0o:5"
WRONG: list[tuple[Handler, dict[str, str], str]] = [
    (LINES, {"task": "nosuch"}, "the job has no task 'nosuch'; its tasks are main, other"),
    (LINES, {"task": "nosuch", "follow": "true"}, "its tasks are main, other"),
    (SEARCH, {"task": "nosuch", "contains": "x"}, "its tasks are main, other"),
    (LINES, {"type": "both"}, "type = 'both' is not a stream: use stdout or stderr, or omit"),
    *(
        (LINES, {"before": bad}, "is not a cursor")
        for bad in ("17", "none.0o:0", "00000001.0x:5", "0000000g.0o:5", f"{CURSOR},", f"{CURSOR}-")
    ),
    (LINES, {"after": "00000001.0o:-1", "follow": "true"}, "is not a cursor"),
    (LINES, {"after": f"{CURSOR},00000001.0o:6"}, "after has 00000001.0o twice"),
    (SEARCH, {"before": f"{CURSOR},{CURSOR}", "contains": "x"}, "before has 00000001.0o twice"),
    (LINES, {"before": CURSOR, "after": CURSOR}, '"before" cannot be combined with "after"'),
    (LINES, {"before": CURSOR, "follow": "true"}, '"before" cannot be combined with "follow"'),
    (LINES, {"at": CURSOR}, '"at" is a position in the log of one task'),
    (LINES, {"lines": "5", "follow": "true"}, '"lines" cannot be combined with "follow"'),
    (SEARCH, {"after": CURSOR, "contains": "x"}, 'give "before" instead of "after"'),
]


@pytest.mark.parametrize(("handler", "query", "message"), WRONG)
async def test_invalid_request_is_refused_with_a_reason(
    logs: JobLogs, handler: Handler, query: dict[str, str], message: str
) -> None:
    await logs.register(with_tasks("main", "other"))
    with pytest.raises(Malformed) as raised:
        await logs.reply(handler, **query)
    assert message in str(raised.value)


async def test_task_is_accepted_before_the_job_has_an_allocation(logs: JobLogs) -> None:
    await logs.register(with_tasks("main"))
    assert (await logs.ask(job_log_views.lines, task="main"))["Lines"] == []
