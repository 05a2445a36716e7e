"""The usage history in the API: parameters, limits of responses, and capabilities."""

from collections import deque
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from daemon.acl.check import Caller
from daemon.api.cluster import usage_history
from daemon.api.cluster.usage_history import MOST
from daemon.api.routes import NODE_READ, READ, READ_OBJECT
from daemon.runner.usage_history import UsageRecorder, _OpenBlock
from daemon.web.request import Request
from storage import garbage
from storage.errors import Denied, Malformed, NotFound
from storage.queries import usage_history as stored_usage
from storage.queries.usage_history import FINE, LENGTH
from storage.records.base import SECOND
from storage.records.group import TaskGroup
from storage.records.task import Network, Task
from storage.records.usage_history import SeriesKey, UsageBlock, UsageHistory, UsageMetric
from storage.store import Store
from tests.parts.api.requests import Tasks, caller, request
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, job
from tests.step_timing import Longest, garbage_as_in_daemon, slowness

TIME = NOW // SECOND


class Recorded(Tasks):
    """A runner with a usage history, which records the requests."""

    def __init__(self, found: dict[str, UsageBlock] | None) -> None:
        self.found = found
        self.asked: list[tuple[SeriesKey, int, int, int]] = []

    async def usage_history(
        self, key: SeriesKey, begin: int, end: int, step: int
    ) -> dict[str, UsageBlock] | None:
        self.asked.append((key, begin, end, step))
        return self.found


@pytest.fixture
async def placed(store: Store) -> Cluster:
    cluster = Cluster(store)
    await cluster.join()
    await cluster.register(job())
    await cluster.work()
    return cluster


def asked(
    store: Store, tasks: Recorded, needs: Any = READ, who: Caller | None = None, **query: str
) -> Request:
    given = request(store, needs, who or caller(), query=urlencode(query), job_id="web")
    return msgspec.structs.replace(given, parts=msgspec.structs.replace(given.parts, tasks=tasks))


async def shown(store: Store, **query: str) -> tuple[SeriesKey, int, int, int]:
    tasks = Recorded({})
    await usage_history.of_job(asked(store, tasks, **query))
    return tasks.asked[0]


async def test_default_is_the_last_hour(placed: Cluster) -> None:
    key, begin, end, step = await shown(placed.store)
    assert key == SeriesKey("job", "web", "default")
    assert (end - begin, step) == (3600, 30)
    assert begin <= TIME - 3600 + step
    assert end >= TIME


@pytest.mark.parametrize(
    ("given", "begin"),
    [
        ("6h", TIME - 6 * 3600),
        ("7d", TIME - 7 * 86400),
        (str(TIME - 90), TIME - 90),
        ("2026-11-21T01:30:00Z", TIME - 600),
    ],
)
async def test_time_is_accepted_in_three_forms(placed: Cluster, given: str, begin: int) -> None:
    _, found, _, step = await shown(placed.store, **{"from": given, "step": "10m"})
    assert found == begin // step * step


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ({"from": "yesterday"}, "from='yesterday' is not a time"),
        ({"to": "-1h"}, "to='-1h' is not a time"),
        ({"from": "1h", "to": "2h"}, '"from" is not before "to"'),
        ({"step": "15s"}, "step='15s' is not a step"),
        ({"step": "0"}, "step='0' is not a step"),
        ({"step": "7m"}, "step='7m' is not a step"),
        ({"step": "x"}, "step='x' is not a step"),
        ({"from": "30d", "step": "10s"}, f"select {MOST} at most"),
    ],
)
async def test_invalid_parameter_is_named(
    placed: Cluster, query: dict[str, str], complaint: str
) -> None:
    with pytest.raises(Malformed, match=complaint):
        await usage_history.of_job(asked(placed.store, Recorded({}), **query))


async def test_unknown_objects_are_not_found(placed: Cluster) -> None:
    given = asked(placed.store, Recorded({}))
    other = msgspec.structs.replace(given, parameters={"job_id": "no", "node_id": "no"})
    with pytest.raises(NotFound):
        await usage_history.of_job(other)
    with pytest.raises(NotFound):
        await usage_history.of_node(other)


def _found(body: object) -> UsageHistory:
    assert isinstance(body, bytes)
    return msgspec.json.decode(body, type=UsageHistory)


async def test_allocation_has_its_sum_and_its_tasks_with_limits(placed: Cluster) -> None:
    (one,) = placed.allocations("web")
    blocks: dict[str, UsageBlock] = {
        "": {UsageMetric.RESTARTS: [1]},
        "main": {UsageMetric.CPU: [500]},
    }
    given = asked(placed.store, Recorded(blocks), READ_OBJECT)
    given = msgspec.structs.replace(given, parameters={"alloc_id": one.id})
    found = _found((await usage_history.of_allocation(given)).body)
    assert [(each.task, each.cpu_percent) for each in found.series] == [
        ("", [50.0]),
        ("main", [50.0]),
    ]
    assert [each.task for each in found.limits] == ["", "main"]
    assert found.limits[1].memory == 20 << 20


async def test_allocation_of_another_namespace_is_denied(placed: Cluster) -> None:
    (one,) = placed.allocations("web")
    who = caller('namespace "other" { policy = "read" }')
    given = asked(placed.store, Recorded({}), READ_OBJECT, who)
    with pytest.raises(Denied):
        await usage_history.of_allocation(
            msgspec.structs.replace(given, parameters={"alloc_id": one.id})
        )


def group_with(name: str, mode: str, driver: str = "exec", **config: object) -> TaskGroup:
    task = Task(name="main", driver=driver, config=config)
    return TaskGroup(name=name, networks=[Network(mode=mode)], tasks=[task])


MIXED = TaskGroup(
    name="a", tasks=[Task(name="main", driver="exec"), Task(name="beside", driver="podman")]
)


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([group_with("a", "bridge")], ""),
        ([group_with("a", "", "podman")], ""),
        ([group_with("a", "", "docker", network_mode="host")], "counted only with the host"),
        ([group_with("a", "host")], "counted only with the host"),
        ([group_with("a", "none")], "these tasks have no network"),
        ([group_with("a", "none", "podman")], "these tasks have no network"),
        ([group_with("a", "", "podman", network_mode="none")], "these tasks have no network"),
        ([MIXED], "tasks on the network of the host are counted only with the host (group a)"),
        (
            [group_with("a", "", "slurm")],
            "the hosts of a cluster do not report their network usage",
        ),
        (
            [group_with("a", "bridge"), group_with("b", "")],
            "tasks on the network of the host are counted only with the host (group b)",
        ),
    ],
)
def test_answer_gives_the_reason_of_a_missing_network(groups: list[TaskGroup], reason: str) -> None:
    found = usage_history._why_no_network(groups)
    assert found.endswith(reason)
    assert bool(found) == bool(reason)


async def test_answers_of_job_and_allocation_have_the_reason(placed: Cluster) -> None:
    (one,) = placed.allocations("web")
    given = asked(placed.store, Recorded({}), READ_OBJECT)
    given = msgspec.structs.replace(given, parameters={"alloc_id": one.id})
    for body in (
        (await usage_history.of_allocation(given)).body,
        (await usage_history.of_job(asked(placed.store, Recorded({})))).body,
    ):
        assert "counted only with the host" in _found(body).no_network


async def test_response_reports_a_disabled_history(placed: Cluster) -> None:
    found = _found((await usage_history.of_job(asked(placed.store, Recorded(None)))).body)
    assert (found.enabled, found.series) == (False, [])


async def test_node_has_the_limits_of_its_host(placed: Cluster) -> None:
    (one,) = placed.allocations("web")
    given = asked(placed.store, Recorded({}), NODE_READ)
    given = msgspec.structs.replace(given, parameters={"node_id": one.node_id})
    (limits,) = _found((await usage_history.of_node(given)).body).limits
    assert limits.memory > 0


TASKS = 2000
MOST_NANOSECONDS = 5_000_000
ATTEMPTS = 5  # repeated, because a garbage collection can disturb a measurement


class Recording(Tasks):
    """A runner whose recorder holds an allocation with many tasks."""

    def __init__(self, store: Store, alloc_id: str) -> None:
        self.recorder = UsageRecorder(store, self, "n", list, lambda _reader: {})
        self.alloc_id = alloc_id

    def now(self) -> int:
        return NOW

    def _keys(self) -> list[SeriesKey]:
        return [SeriesKey("alloc", self.alloc_id, "default", f"task{n}") for n in range(TASKS)]

    async def fill(self, store: Store) -> None:
        """Add a stored block, an open block, and ten minutes of samples, one for each second."""
        begin = TIME // LENGTH[FINE] * LENGTH[FINE]
        block: UsageBlock = {UsageMetric.CPU: [500] * 30, UsageMetric.MEMORY: [1024] * 30}
        blocks = dict.fromkeys(self._keys(), block)
        await store.write(
            lambda tx: stored_usage.put(tx, FINE, begin - LENGTH[FINE], blocks), is_long=True
        )
        self.recorder._open = _OpenBlock(begin, {key: {**block} for key in blocks})
        sample = {UsageMetric.CPU: 500, UsageMetric.MEMORY: 1024}
        seconds = [(TIME - 100 + number, sample) for number in range(100)]
        self.recorder._live = {key: deque(seconds, maxlen=600) for key in blocks}

    async def usage_history(
        self, key: SeriesKey, begin: int, end: int, step: int
    ) -> dict[str, UsageBlock] | None:
        return await self.recorder.read(key, begin, end, step)


@pytest.fixture
async def freed_by_threads(nursery: trio.Nursery) -> AsyncIterator[None]:
    """Let threads free large objects, and collect garbage as rarely as the daemon."""
    with garbage_as_in_daemon():
        nursery.start_soon(garbage.run_collector)
        await wait_all_tasks_blocked()
        yield


@pytest.mark.parametrize(("span", "step"), [("10m", "10s"), ("1h", "30s"), ("2m", "1s")])
@pytest.mark.usefixtures("freed_by_threads")
async def test_history_of_many_tasks_does_not_block_the_event_loop(
    placed: Cluster, span: str, step: str
) -> None:
    (one,) = placed.allocations("web")
    tasks = Recording(placed.store, one.id)
    await tasks.fill(placed.store)
    given = request(
        placed.store, READ_OBJECT, caller(), query=f"from={span}&step={step}", alloc_id=one.id
    )
    given = msgspec.structs.replace(given, parts=msgspec.structs.replace(given.parts, tasks=tasks))
    measured = []
    for _ in range(ATTEMPTS):
        measure = Longest()
        await trio.lowlevel.checkpoint()
        trio.lowlevel.add_instrument(measure)
        try:
            await trio.lowlevel.checkpoint()
            reply = await usage_history.of_allocation(given)
        finally:
            await trio.lowlevel.checkpoint()
            trio.lowlevel.remove_instrument(measure)
        measured.append(measure.longest)
        if measure.longest <= MOST_NANOSECONDS:
            break
    assert len(_found(reply.body).series) == TASKS + 1
    assert min(measured) <= MOST_NANOSECONDS * slowness(), measured
