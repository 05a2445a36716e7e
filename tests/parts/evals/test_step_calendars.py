"""Steps with a calendar begin only while it is open."""

from datetime import UTC, datetime
from typing import Any

import pytest

from daemon.evals.cluster_state import load_cluster_state
from daemon.jobs import calendars as rules
from daemon.jobs.steer_run import RunActRequest, act_on_run
from storage.queries import evaluations
from storage.records.base import SECOND
from storage.records.calendar import Calendar
from storage.records.flow import RunActType
from storage.records.group import TaskGroup
from storage.store import Store
from tests.parts.evals.cluster import Cluster
from tests.parts.evals.test_workflows import at_work, begun, end, run_of, states, step, workflow

OFFICE = Calendar(name="office", namespace="default", hours=["08:00-18:00"])


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


@pytest.fixture
async def night(store: Store) -> Cluster:
    """Return a cluster at night, with a calendar that opens at 08:00."""
    cluster = Cluster(store)
    await cluster.join()
    cluster.clock.time = at("2026-11-27T07:00:00")
    await rules.apply(store, OFFICE, now=cluster.clock.now())
    return cluster


def in_office(name: str, needs: str = "", **fields: Any) -> TaskGroup:
    one = step(name, needs, **fields)
    meta = {**(one.meta or {}), "steward_calendar": "office"}
    return step(name, **{**fields, "meta": meta})


async def test_a_step_is_held_until_its_calendar_opens(night: Cluster) -> None:
    await begun(night, workflow(step("a"), in_office("b", "a")))
    assert states(night)["b"] == "waiting"
    await end(night, "a")
    await night.work()
    (_, held) = run_of(night).steps
    assert (held.state, held.reason) == (
        "held",
        'closed: calendar "office" version 1: outside of 08:00-18:00; '
        "it opens at 2026-11-27T08:00:00Z",
    )
    assert night.job("etl").status == "running"
    night.wait(3599)
    assert await night.work() == []
    night.wait(1)
    await night.work()
    assert at_work(night) == ["b"]
    await end(night, "b")
    await night.work()
    assert run_of(night).status == "succeeded"


async def test_calendars_of_all_steps_share_one_limit(night: Cluster) -> None:
    names = [f"never-{number}" for number in range(12)]
    hours = [f"{hour:02}:00-{hour:02}:30" for hour in range(24)]
    for name in names:  # always closed; a search ends after five years of slots
        never = Calendar(name=name, namespace="default", hours=hours, except_=["always"])
        await rules.apply(night.store, Calendar(name="always", namespace="default"), now=0)
        await rules.apply(night.store, never, now=night.clock.now())
    steps = [step(f"s{n}", meta={"steward_calendar": name}) for n, name in enumerate(names)]
    await night.register(workflow(*steps))
    (evaluation,) = night.store.read(lambda db: evaluations.unfinished(db, "default", "etl"))
    state = night.store.read(lambda db: load_cluster_state(db, evaluation))
    now = night.clock.now()
    assert [state.openings[name].next_open(now) for name in names] == [None] * len(names)
    limited = [one.is_limited for one in state.openings.values()]
    assert (limited[0], limited[-1]) == (False, True)


async def test_closing_calendar_stops_no_running_element(night: Cluster) -> None:
    night.clock.time = at("2026-11-27T17:59:00")
    await begun(night, workflow(in_office("b", count=2, parallel="1")))
    night.wait(3600)
    await end(night, "b")
    await night.work()
    assert at_work(night) == ["b"]  # the step has begun


async def test_changed_calendar_applies_to_the_next_decision(night: Cluster) -> None:
    await begun(night, workflow(in_office("b")))
    later = Calendar(name="office", namespace="default", hours=["10:00-18:00"])
    await rules.apply(night.store, later, now=night.clock.now())
    night.wait(3600)
    await night.work()
    assert run_of(night).steps[0].reason.endswith("it opens at 2026-11-27T10:00:00Z")
    night.wait(2 * 3600)
    await night.work()
    assert at_work(night) == ["b"]


async def test_step_without_its_calendar_never_starts(night: Cluster) -> None:
    missing = step("b", meta={"steward_calendar": "none"})
    await begun(night, workflow(missing))
    (held,) = run_of(night).steps
    assert (held.state, held.reason) == ("held", 'closed: calendar "none" does not exist')
    new = Calendar(name="none", namespace="default")
    await rules.apply(night.store, new, now=night.clock.now())
    night.wait(24 * 3600 + 3600)
    await night.work()
    assert at_work(night) == ["b"]


async def test_new_run_checks_the_calendar_again(night: Cluster) -> None:
    night.clock.time = at("2026-11-27T17:59:00")
    await begun(night, workflow(in_office("b")))
    await end(night, "b")
    await night.work()
    night.wait(3600)
    await begun(night, workflow(in_office("b"), priority=60))
    assert (run_of(night).number, states(night)) == (2, {"b": "held"})


async def test_clean_up_does_not_wait_for_its_calendar(night: Cluster) -> None:
    clean = in_office("clean", "*", when="always")
    await begun(night, workflow(step("a"), clean))
    await act_on_run(
        *(night.store, "default", "etl", RunActType.CANCEL, RunActRequest()),
        caller="ann",
        now=night.clock.now(),
        eval_id=next(night.ids),
        may_approve=False,
    )
    await night.work()
    await end(night, "a")
    await night.work()
    assert at_work(night) == ["clean"]
