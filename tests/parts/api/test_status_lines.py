"""Cached status lines of jobs: equal to new ones after each kind of change."""

from functools import partial
from unittest.mock import Mock

import msgspec
import pytest

from daemon.api.cluster import statuses
from daemon.api.routes import ROUTES
from daemon.app.status_lines import LONGEST, MOST, StatusLines
from storage.queries import (
    allocations,
    deployments,
    evaluations,
    freezes,
    job_stamps,
    jobs,
)
from storage.records.allocation import ClientStatus, TaskEvent, TaskState
from storage.records.codec import parse
from storage.records.evaluation import EvalStatus
from storage.records.group import Update
from storage.records.job import Job, Parameterized
from storage.records.times import rfc3339
from storage.store import Store
from storage.writer import Transaction
from tests.parts.api import requests
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, group, job
from tests.unit.scheduler.world import small

(NEEDS,) = {route.needs for route in ROUTES if route.path == "/v1/jobs/statuses"}
HUGE = 10**6  # more memory than the node has


@pytest.fixture
async def cluster(store: Store) -> Cluster:
    """A cluster whose only node has capacity for five default tasks."""
    made = Cluster(store)
    await made.join(small())
    return made


class Page:
    """The list of jobs with its cached lines."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster, self.lines = cluster, StatusLines()
        self.made = Mock(side_effect=statuses._line)
        monkeypatch.setattr(statuses, "_line", self.made)

    def read(self, lines: StatusLines, query: str = "states=true&strip=true") -> bytes:
        asked = requests.request(self.cluster.store, NEEDS, requests.caller(), query=query)
        parts = msgspec.structs.replace(asked.parts, status_lines=lines, clock=self.cluster.clock)
        asked = msgspec.structs.replace(asked, parts=parts)
        reply = self.cluster.store.read(partial(statuses.index, asked))
        assert isinstance(reply.body, bytes)
        return reply.body

    def text(self) -> str:
        """Return the list; it must be the same as without cached lines."""
        found = self.read(self.lines)
        assert found == self.read(StatusLines())
        return found.decode()

    def number_made(self) -> int:
        """Return the number of lines that a read computes."""
        self.made.reset_mock()
        self.read(self.lines)
        return int(self.made.call_count)


@pytest.fixture
def page(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Page:
    return Page(cluster, monkeypatch)


async def run(cluster: Cluster, one: Job) -> None:
    await cluster.register(one)
    await cluster.work()


async def tell(cluster: Cluster, status: ClientStatus, state: TaskState, *said: TaskEvent) -> None:
    """Report a state of the newest allocation of `web`."""

    def write(tx: Transaction) -> None:
        alloc = allocations.of_job(tx, "default", "web")[0]
        client = msgspec.structs.replace(alloc.client, task_states={"main": state})
        changed = msgspec.structs.replace(alloc, client_status=status, client=client)
        allocations.set_client(tx, changed, NOW)
        allocations.add_events(tx, alloc.id, {"main": said})

    await cluster.store.write(write)


async def test_unchanged_lines_are_not_made_again(cluster: Cluster, page: Page) -> None:
    for name in ("web", "api", "db"):
        await run(cluster, job(name))
    page.text()
    assert page.number_made() == 0
    await cluster.run_all("api")
    assert page.number_made() == 1


async def test_lines_with_and_without_state_are_kept_apart(cluster: Cluster, page: Page) -> None:
    await run(cluster, job())
    assert "StewardState" in page.text()
    assert b"StewardState" not in page.read(page.lines, "")


async def test_counts_replace_the_lists_of_allocations_and_children(
    cluster: Cluster, page: Page
) -> None:
    await run(cluster, job("web", group(count=3)))
    await run(cluster, job("many", type="batch", parameterized_job=Parameterized()))
    lists = {line["ID"]: line for line in parse(page.read(page.lines, ""))}
    assert [len(lists["web"]["Allocs"]), lists["many"]["ChildStatuses"]] == [3, []]
    assert "StewardAllocations" not in lists["web"]
    counted = {line["ID"]: line for line in parse(page.read(page.lines, "counts=true"))}
    assert counted["web"].pop("StewardAllocations") == {"pending": 3}
    assert counted["many"].pop("StewardAllocations") == {}
    for name, line in counted.items():
        assert line == {**lists[name], "Allocs": None, "ChildStatuses": None}
    await cluster.run_all()
    assert b'"StewardAllocations":{"running":3}' in page.read(page.lines, "counts=true")
    (web,) = (line for line in parse(page.read(page.lines, "")) if line["ID"] == "web")
    assert len(web["Allocs"]) == 3


async def test_line_follows_an_allocation_from_its_placement_to_its_end(
    cluster: Cluster, page: Page
) -> None:
    await cluster.register(job(type="batch"))
    assert '"Allocs":null' in page.text()
    await cluster.work()
    assert '"ClientStatus":"pending"' in page.text()
    await tell(cluster, ClientStatus.RUNNING, TaskState(state="running"))
    assert '"State":"running"' in page.text()
    event = TaskEvent(type="Terminated", time=NOW, exit_code=3)
    await tell(cluster, ClientStatus.FAILED, TaskState(state="dead", failed=True), event)
    assert "exited with code 3" in page.text()


async def test_line_follows_evaluations(cluster: Cluster, page: Page) -> None:
    await cluster.register(job())
    assert '"State":"pending"' in page.text()
    (waiting,) = cluster.evaluations(EvalStatus.PENDING)
    failed = msgspec.structs.replace(waiting, status=EvalStatus.FAILED, status_description="a bug")
    await cluster.store.write(lambda tx: evaluations.put(tx, failed, NOW))
    assert "a bug" in page.text()


async def test_deleted_blocked_evaluation_changes_the_line(cluster: Cluster, page: Page) -> None:
    await cluster.register(job("web", group(count=9)))
    await cluster.work()
    (blocked,) = cluster.evaluations(EvalStatus.BLOCKED)
    newer = msgspec.structs.replace(blocked, id="e-new", status=EvalStatus.COMPLETE)
    await cluster.store.write(lambda tx: evaluations.put(tx, newer, NOW))
    assert "not placed" in page.text()
    await cluster.store.write(lambda tx: evaluations.remove(tx, [blocked.id]))
    assert "not placed" not in page.text()


async def test_line_follows_versions_and_deployments(cluster: Cluster, page: Page) -> None:
    first = job("web", group(update=Update(max_parallel=1)))
    await run(cluster, first)
    await cluster.run_all(healthy=True)
    assert '"Version":0' in page.text()
    await run(cluster, msgspec.structs.replace(first, priority=70))
    assert '"Priority":70' in page.text()
    latest = cluster.deployment()
    paused = msgspec.structs.replace(latest, status="paused", status_description="by hand")
    await cluster.store.write(lambda tx: deployments.put(tx, paused, NOW))
    assert "by hand" in page.text()


async def test_line_follows_stop_and_purge(cluster: Cluster, page: Page) -> None:
    await run(cluster, job())
    await cluster.run_all()
    page.text()
    await run(cluster, msgspec.structs.replace(cluster.job(), stop=True))
    assert '"State":"stopped","Reason":"1 allocation still stopping"' in page.text()
    await cluster.run_all()
    assert "still stopping" not in page.text()
    await cluster.store.write(lambda tx: jobs.purge(tx, cluster.job()))
    assert page.text() == "[]"
    await run(cluster, job())
    assert '"State":"pending"' in page.text()


async def test_deleted_allocation_leaves_the_line(cluster: Cluster, page: Page) -> None:
    await run(cluster, job("web", group(count=2)))
    one, other = cluster.allocations()
    await cluster.report(one, ClientStatus.COMPLETE)
    await cluster.report(other, ClientStatus.RUNNING)
    assert one.id in page.text()
    remove = "DELETE FROM allocations WHERE id = :id"
    await cluster.store.write(lambda tx: tx.execute(remove, {"id": one.id}))
    assert one.id not in page.text()


async def test_failing_task_settles_with_the_time(cluster: Cluster, page: Page) -> None:
    await run(cluster, job())
    again = TaskState(state="running", restarts=1, last_restart=rfc3339(NOW))
    restarting = TaskEvent(type="Restarting", time=NOW, restart_reason="Restart within policy")
    await tell(cluster, ClientStatus.RUNNING, again, restarting)
    assert '"State":"failing"' in page.text()
    cluster.wait(61)
    assert '"State":"running"' in page.text()


async def test_line_of_a_held_job_follows_its_freeze(cluster: Cluster, page: Page) -> None:
    await run(cluster, job(type="batch"))
    await tell(cluster, ClientStatus.PENDING, TaskState(state="pending"))
    page.text()
    await cluster.store.write(lambda tx: freezes.hold(tx, ("default", "web"), "f1", NOW))
    page.text()
    assert page.number_made() == 1


async def test_line_of_a_parent_follows_its_children(cluster: Cluster, page: Page) -> None:
    await run(cluster, job(type="batch", parameterized_job=Parameterized()))
    page.text()
    assert page.number_made() == 1


async def test_line_of_a_workflow_is_made_again(cluster: Cluster, page: Page) -> None:
    meta = {"steward_needs": ""}
    step = msgspec.structs.replace(group("a"), meta={"steward_when": "always"} | meta)
    await cluster.register(job("web", step, group("b"), type="batch"))
    page.text()
    assert page.number_made() == 1


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("jobs", "UPDATE jobs SET summary_index = summary_index + 1"),
        ("jobs", "UPDATE jobs SET held = 1"),
        ("jobs", "UPDATE jobs SET stop = 1"),
        ("jobs", "UPDATE jobs SET status = 'dead'"),
        ("jobs", "UPDATE jobs SET modify_index = modify_index + 1"),
        ("evaluations", "UPDATE evaluations SET modify_index = modify_index + 1"),
        ("allocations", "UPDATE allocations SET modify_index = modify_index + 1"),
        ("deployments", "UPDATE deployments SET modify_index = modify_index + 1"),
        ("deployments", "DELETE FROM deployments"),
    ],
)
async def test_stamp_differs_after_a_change(cluster: Cluster, table: str, change: str) -> None:
    await run(cluster, job("web", group(update=Update(max_parallel=1))))

    def stamp() -> job_stamps.Stamp | None:
        return cluster.store.read(lambda db: job_stamps.load(db, "default", "web"))

    before = stamp()
    assert before is not None
    await cluster.store.write(lambda tx: tx.execute(change, {}))
    assert stamp() != before, table


def test_long_lines_are_not_kept() -> None:
    lines, key = StatusLines(), ("default", "web", True, True)
    lines.keep(key, (1,), b"x" * LONGEST)
    assert lines.find(key, (1,)) is not None
    lines.keep(key, (2,), b"x" * (LONGEST + 1))
    assert lines.find(key, (1,)) is None


def test_number_of_kept_lines_is_limited() -> None:
    lines = StatusLines()
    for number in range(MOST + 1):
        lines.keep(("default", str(number), True, True), (1,), b"x")
    assert lines.find(("default", "0", True, True), (1,)) is None
    assert lines.find(("default", str(MOST), True, True), (1,)) == b"x"
