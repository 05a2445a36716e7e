"""The plan of a workflow: the steps that can begin now, its queues and its calendars."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from daemon.evals.dry_run import dry_run
from daemon.evals.planned_flow import MOST_SHOWN, planned_flow
from daemon.jobs import calendars, queues
from daemon.jobs import freezes as rules
from daemon.jobs.freezes import FreezeRequest
from storage.queries import concurrency
from storage.records.base import SECOND
from storage.records.calendar import Calendar
from storage.records.flow import PlannedFlow
from storage.records.job import Job, Periodic
from tests.parts.evals.cluster import Cluster
from tests.parts.evals.test_workflows import begun, step, workflow


def planned(cluster: Cluster, wanted: Job) -> PlannedFlow:
    now = cluster.clock.now()

    def look(db: Any) -> PlannedFlow:
        return planned_flow(
            db, wanted, dry_run(db, wanted, now=now, ids=cluster.ids).opened, now=now
        )

    return cluster.store.read(look)


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


async def limit(cluster: Cluster, name: str, slots: int) -> None:
    await cluster.store.write(lambda tx: concurrency.set_limit(tx, ("default", name), slots, ""))


def in_queue(*names: str, **meta: str) -> Job:
    keys = {"steward_run_concurrency": "warehouse", **meta}
    one = workflow(*(step(name) for name in names or ("a",)))
    return msgspec.structs.replace(one, meta=keys)


async def test_only_steps_without_needs_gates_and_times_are_ready(cluster: Cluster) -> None:
    one = workflow(
        step("b", "a"),
        step("a"),
        step("gated", meta={"steward_gate": "Go?"}),
        step("timed", meta={"steward_not_before": "+1h"}),
        step("empty", meta={"steward_for_each": "[]"}),
        step("last", "b"),
    )
    flow = planned(cluster, one)
    assert flow.ready == ["a"]
    assert flow.order == ["a", "gated", "timed", "empty", "b", "last"]
    assert (flow.longest, flow.queues, flow.calendars) == (["a", "b", "last"], [], [])


async def test_an_unchanged_job_begins_no_step_again(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a")))
    assert planned(cluster, cluster.job("etl")).ready == []


async def test_a_child_of_a_periodic_job_is_planned(cluster: Cluster) -> None:
    block = Periodic(enabled=True, specs=["0 2 * * *"], spec_type="cron")
    assert planned(cluster, msgspec.structs.replace(in_queue(), periodic=block)).ready == ["a"]


async def test_a_run_without_a_free_slot_has_no_ready_step(cluster: Cluster) -> None:
    await limit(cluster, "warehouse", 2)
    holder = msgspec.structs.replace(in_queue(), id="holder", name="holder")
    flow = planned(cluster, in_queue())
    (queue,) = flow.queues
    assert (queue.name, queue.use, queue.slots, queue.in_use) == ("warehouse", "runs", 2, 0)
    assert (queue.exists, flow.ready) == (True, ["a"])
    await begun(cluster, holder)
    await grant(cluster)
    flow = planned(cluster, in_queue())
    assert ([queue.in_use for queue in flow.queues], flow.ready) == ([1], ["a"])
    wide = in_queue(steward_run_concurrency_slots="2")
    assert planned(cluster, wide).ready == []


async def grant(cluster: Cluster) -> None:
    now = cluster.clock.now()
    work = partial(queues.serve, key=("default", "warehouse"), now=now, ids=cluster.ids)
    await cluster.store.write(work)


async def test_steps_share_the_slots_of_a_queue(cluster: Cluster) -> None:
    steps = [step(name, meta={"steward_concurrency": "db"}) for name in "abc"]
    flow = planned(cluster, workflow(*steps))
    assert ([queue.exists for queue in flow.queues], flow.ready) == ([False], ["a"])
    await limit(cluster, "db", 2)
    assert planned(cluster, workflow(*steps)).ready == ["a", "b"]
    array = step("many", count=5, meta={"steward_concurrency": "db"})
    assert planned(cluster, workflow(array, *steps)).ready == ["many"]
    halved = {"steward_concurrency": "db", "steward_parallel": "1"}
    array = step("many", count=5, meta=halved)
    assert planned(cluster, workflow(array, *steps)).ready == ["many", "a"]


async def test_a_freeze_leaves_no_step_ready(cluster: Cluster) -> None:
    request = FreezeRequest(reason="release", strength="begin")
    now = cluster.clock.now()
    await rules.make(cluster.store, rules.freeze_of(request, "default", "f", now))
    assert planned(cluster, workflow(step("a"))).ready == []


async def test_a_closed_calendar_holds_steps_and_shows_its_opening(cluster: Cluster) -> None:
    cluster.clock.time = at("2026-11-27T07:00:00")
    office = Calendar(
        name="office", namespace="default", hours=["08:00-18:00"], time_zone="Europe/Berlin"
    )
    await calendars.apply(cluster.store, office, now=cluster.clock.now())
    one = workflow(step("a"), step("b", meta={"steward_calendar": "office"}))
    cluster.clock.time = at("2026-11-27T06:30:00")
    flow = planned(cluster, one)
    (calendar,) = flow.calendars
    assert (calendar.is_open, calendar.reason) == (False, "outside of 08:00-18:00")
    assert (calendar.next_opening, flow.ready) == ("2026-11-27T08:00:00+01:00", ["a"])
    cluster.clock.time = at("2026-11-27T07:30:00")
    flow = planned(cluster, one)
    assert (flow.calendars[0].is_open, flow.ready) == (True, ["a", "b"])


async def test_the_first_queues_are_shown(cluster: Cluster) -> None:
    names = [f"q{number}" for number in range(30)]
    steps = [step(f"s{name}", meta={"steward_concurrency": name}) for name in names]
    one = msgspec.structs.replace(workflow(*steps), meta={"steward_run_concurrency": "warehouse"})
    flow = planned(cluster, one)
    assert [queue.name for queue in flow.queues] == ["warehouse", *names[: MOST_SHOWN - 1]]
    assert len(flow.ready) == len(names)
