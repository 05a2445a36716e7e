"""Jobs that start after other jobs have ended, one or several, and refused definitions."""

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
import trio

from daemon.jobs.evaluate import EvalOptions, evaluate_job, new_evaluation
from daemon.jobs.followers import follow_errors, follow_warnings
from daemon.jobs.stop import stop
from daemon.jobs.triggers import Means, decide, expire, passed_on
from daemon.jobspec.budgets import Budgets
from daemon.process.parts import open_triggers
from storage.queries import (
    children,
    evaluations,
    invariants,
    job_status,
    jobs,
    notifications,
    runs,
    triggers,
)
from storage.records.allocation import ClientStatus
from storage.records.base import HOUR
from storage.records.evaluation import Trigger
from storage.records.group import ReschedulePolicy
from storage.records.job import Job, Parameterized
from storage.records.trigger import JobTrigger, SourceLine
from storage.store import Store
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.parts.evals.test_workflows import report
from tests.samples import group, job, task
from tests.time_limits import HAPPENS_WITHIN

KEYS = {
    "when": "steward_after_when",
    "join": "steward_after_join",
    "key": "steward_after_key",
    "within": "steward_after_within",
    "passes": "steward_after_meta",
}
NEVER = ReschedulePolicy(attempts=0, unlimited=False)
BUDGETS = Budgets()


def plain(job_id: str, **fields: Any) -> Job:
    return job(job_id, group("a", task(), reschedule_policy=NEVER), type="batch", **fields)


def follower(job_id: str, after: str, **fields: Any) -> Job:
    keys = {KEYS[key]: fields.pop(key) for key in KEYS if key in fields}
    meta = {"steward_after": after, **keys, **fields.pop("meta", {})}
    block = Parameterized(
        meta_required=fields.pop("required", None), meta_optional=fields.pop("optional", None)
    )
    return plain(job_id, parameterized_job=block, meta=meta, **fields)


class Jobs:
    """A cluster in which jobs follow others; `settle` does the work of the loop."""

    def __init__(self, store: Store) -> None:
        self.cluster = Cluster(store)
        self.store, self.clock, self.ids = store, self.cluster.clock, unique()

    async def register(self, *made: Job) -> None:
        for item in made:
            if item.launches_children:
                await self.store.write(partial(stored, one=item))
            else:
                await self.cluster.register(item)
                await self.cluster.work()

    async def end(self, job_id: str, status: ClientStatus = ClientStatus.COMPLETE) -> None:
        """Let the running allocations of a job end, and evaluate the job."""
        for alloc in self.cluster.allocations(job_id):
            if not alloc.client_terminal:
                await self.cluster.report(alloc, status)
        await self.cluster.work()

    async def run(self, job_id: str, **fields: Any) -> None:
        await self.register(plain(job_id, **fields))
        await self.end(job_id)

    async def settle(self, budgets: Budgets = BUDGETS) -> None:
        for trigger in self.store.read(lambda db: triggers.expired(db, self.clock.now(), 100)):
            await self.store.write(partial(expire, trigger_id=trigger.id, now=self.clock.now()))
        for trigger in self.store.read(lambda db: triggers.undecided(db, 100)):
            await self.decide(trigger, budgets)
        await self.cluster.work()

    async def decide(self, one: JobTrigger, budgets: Budgets = BUDGETS) -> None:
        passed = self.store.read(partial(passed_on, trigger=one))
        assert passed is not None
        means = Means(now=self.clock.now(), ids=self.ids, budgets=budgets, payloads="")
        await self.store.write(
            partial(decide, trigger_id=one.id, passed_sources=passed, means=means)
        )

    def ledger(self, job_id: str) -> list[JobTrigger]:
        found = self.store.read(lambda db: list(triggers.of_job(db, "default", job_id)))
        return found[::-1]

    def states(self, job_id: str) -> list[str]:
        return [entry.state.value for entry in self.ledger(job_id)]

    def child(self, job_id: str) -> Job:
        """Return the only child of a follower."""
        (found,) = {entry.child_id for entry in self.ledger(job_id) if entry.child_id}
        return self.cluster.job(found)

    def broken(self) -> list[str]:
        return self.store.read(lambda db: list(invariants.find_violations(db)))


def stored(tx: Transaction, one: Job) -> None:
    jobs.append_version(tx, one)
    job_status.refresh_summary(tx, one.namespace, one.id)


def unique() -> Iterator[str]:
    """Yield ids that differ in their first characters."""
    return (f"{number:08x}-1111-4000-8000-000000000000" for number in count(1))


@pytest.fixture
async def made(store: Store) -> Jobs:
    found = Jobs(store)
    await found.cluster.join()
    return found


SUCCESS, FAILURE = ClientStatus.COMPLETE, ClientStatus.FAILED


@pytest.mark.parametrize(
    ("when", "status", "state"),
    [
        ("success", SUCCESS, "fired"),
        ("success", FAILURE, "ignored"),
        ("failure", FAILURE, "fired"),
        ("failure", SUCCESS, "ignored"),
        ("any", SUCCESS, "fired"),
        ("any", FAILURE, "fired"),
    ],
)
async def test_follower_starts_after_the_named_results(
    made: Jobs, when: str, status: ClientStatus, state: str
) -> None:
    await made.register(follower("load", "extract", when=when), plain("extract"))
    await made.end("extract", status)
    await made.settle()
    assert made.states("load") == [state]
    assert bool(made.ledger("load")[0].child_id) == (state == "fired")
    assert bool(made.ledger("load")[0].reason) == (state == "ignored")
    assert made.broken() == []


async def test_child_of_a_follower_runs(made: Jobs) -> None:
    await made.register(follower("load", "extract"))
    await made.run("extract")
    await made.settle()
    child = made.child("load")
    assert child.parent_id == "load"
    assert [alloc.client_status for alloc in made.cluster.allocations(child.id)] == ["pending"]


async def test_a_stopped_run_starts_only_followers_of_any_end_after_its_last_task(
    made: Jobs,
) -> None:
    await made.register(follower("load", "extract"), follower("watch", "extract", when="any"))
    await made.register(plain("extract"))
    eval_id = next(made.cluster.ids)
    await made.store.write(
        lambda tx: stop(tx, made.cluster.job("extract"), now=made.clock.now(), eval_id=eval_id)
    )
    await made.cluster.work()
    assert made.ledger("watch") == []
    await made.end("extract")
    await made.settle()
    assert (made.states("load"), made.states("watch")) == (["ignored"], ["fired"])
    assert [entry.status for entry in made.ledger("watch")] == ["canceled"]


async def test_each_version_of_a_plain_job_starts_a_follower_once(made: Jobs) -> None:
    await made.register(follower("load", "extract"))
    await made.run("extract", meta={"n": "1"})
    await made.settle()
    await made.run("extract", meta={"n": "2"})
    await made.settle()
    again = next(made.cluster.ids)
    await made.store.write(partial(evaluated_again, eval_id=again, now=made.clock.now()))
    await made.cluster.work()
    await made.settle()
    assert [(entry.number, entry.state) for entry in made.ledger("load")] == [
        (0, "fired"),
        (1, "fired"),
    ]


def evaluated_again(tx: Transaction, eval_id: str, now: int) -> None:
    one = jobs.current(tx, "default", "extract")
    assert one is not None
    evaluations.put(tx, new_evaluation(one, eval_id, Trigger.JOB_REGISTER, job_modify_index=0), now)
    job_status.refresh_summary(tx, "default", "extract")


async def forced(made: Jobs, job_id: str) -> None:
    options = EvalOptions(force_reschedule=True)
    await evaluate_job(
        made.store,
        "default",
        job_id,
        options,
        now=made.clock.now(),
        eval_id=next(made.cluster.ids),
    )
    await made.cluster.work()


async def test_a_job_that_succeeds_after_a_forced_reschedule_starts_its_followers(
    made: Jobs,
) -> None:
    await made.register(
        follower("load", "extract"), follower("alarm", "extract", when="failure"), plain("extract")
    )
    for status in (FAILURE, FAILURE, SUCCESS):
        if made.ledger("load"):
            await forced(made, "extract")
        await made.end("extract", status)
        await made.settle()
    assert made.states("load") == ["ignored", "ignored", "fired"]
    assert made.states("alarm") == ["fired", "fired", "ignored"]
    assert [(entry.number, entry.attempt, entry.status) for entry in made.ledger("load")] == [
        (0, 1, "failed"),
        (0, 2, "failed"),
        (0, 3, "succeeded"),
    ]


async def test_end_deleted_from_the_ledger_starts_nothing_again(
    made: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "KEPT", 1)
    await made.register(follower("load", "extract, other"))
    await made.run("extract")
    await made.settle()
    await made.end(made.child("load").id)
    await made.run("other")
    await made.settle()
    assert [entry.source_id for entry in made.ledger("load")] == ["other"]
    again = next(made.cluster.ids)
    await made.store.write(partial(evaluated_again, eval_id=again, now=made.clock.now()))
    await made.cluster.work()
    stopping = next(made.cluster.ids)
    await made.store.write(
        lambda tx: stop(tx, made.cluster.job("extract"), now=made.clock.now(), eval_id=stopping)
    )
    await made.cluster.work()
    assert [entry.source_id for entry in made.ledger("load")] == ["other"]


async def test_purged_and_registered_job_starts_its_followers_again(
    made: Jobs,
) -> None:
    await made.register(follower("load", "extract"))
    for _ in range(2):
        await made.run("extract")
        await made.settle()
        await made.store.write(lambda tx: jobs.purge(tx, made.cluster.job("extract")))
    assert [(entry.number, entry.attempt, entry.state) for entry in made.ledger("load")] == [
        (0, 1, "fired"),
        (0, 2, "fired"),
    ]


async def test_purged_and_registered_workflow_starts_its_followers_again(
    made: Jobs,
) -> None:
    second = group("b", task(), meta={"steward_needs": "a"}, reschedule_policy=NEVER)
    flow = job("extract", group("a", task(), reschedule_policy=NEVER), second, type="batch")
    await made.register(follower("load", "extract"))
    for _ in range(2):
        await made.register(flow)
        for name in "ab":
            (one,) = [
                alloc for alloc in made.cluster.allocations("extract") if alloc.task_group == name
            ]
            await report(made.cluster, one)
            await made.cluster.work()
        await made.settle()
        await made.store.write(lambda tx: jobs.purge(tx, made.cluster.job("extract")))
    assert [(entry.number, entry.attempt, entry.state) for entry in made.ledger("load")] == [
        (1, 1, "fired"),
        (1, 2, "fired"),
    ]


async def test_follower_of_a_purged_and_registered_job_starts_again(
    made: Jobs,
) -> None:
    second = group("b", task(), meta={"steward_needs": "a"}, reschedule_policy=NEVER)
    flow = job("extract", group("a", task(), reschedule_policy=NEVER), second, type="batch")

    async def end(name: str) -> None:
        (one,) = [
            alloc for alloc in made.cluster.allocations("extract") if alloc.task_group == name
        ]
        await report(made.cluster, one)
        await made.cluster.work()

    await made.register(follower("load", "extract"), flow)
    for name in "ab":
        await end(name)
    await made.settle()
    await made.store.write(lambda tx: jobs.purge(tx, made.cluster.job("extract")))
    await made.register(follower("load", "other"))
    await made.register(flow)
    await end("a")
    await made.register(follower("load", "extract"))
    await end("b")
    await made.settle()
    assert [(entry.number, entry.attempt, entry.state) for entry in made.ledger("load")] == [
        (1, 1, "fired"),
        (1, 2, "fired"),
    ]


async def test_run_that_ended_earlier_starts_nothing(made: Jobs) -> None:
    await made.run("extract")
    await made.register(follower("load", "extract"))
    again = next(made.cluster.ids)
    await made.store.write(partial(evaluated_again, eval_id=again, now=made.clock.now()))
    await made.cluster.work()
    assert made.ledger("load") == []


async def test_runs_of_children_count_as_runs_of_their_parent(made: Jobs) -> None:
    await made.register(follower("load", "extract"), follower("extract", "start"))
    await made.run("start")
    await made.settle()
    child = made.child("extract").id
    await made.end(child)
    await made.settle()
    (line,) = made.ledger("load")
    assert (line.source_id, line.run_job_id, line.state, line.depth) == (
        "extract",
        child,
        "fired",
        2,
    )


async def test_a_join_waits_for_one_run_of_each_source(made: Jobs) -> None:
    await made.register(follower("report", "a, b", join="all"))
    await made.run("a")
    await made.settle()
    assert made.states("report") == ["waiting"]
    lines = made.store.read(lambda db: triggers.source_lines(db, "default", "report"))
    assert lines == [
        SourceLine(namespace="default", job_id="a", exists=True, waiting=1),
        SourceLine(namespace="default", job_id="b", exists=False, waiting=0),
    ]
    await made.run("a", meta={"n": "2"})
    await made.settle()
    assert made.states("report") == ["replaced", "waiting"]
    await made.run("b")
    await made.settle()
    assert made.states("report") == ["replaced", "fired", "fired"]
    assert made.child("report").parent_id == "report"
    assert made.broken() == []


async def test_join_with_a_key_separates_values(made: Jobs) -> None:
    await made.register(follower("report", "a, b", join="all", key="day"))
    await made.run("a", meta={"day": "mon"})
    await made.run("b", meta={"day": "tue"})
    await made.settle()
    assert made.states("report") == ["waiting", "waiting"]
    await made.run("b", meta={"day": "mon"})
    await made.settle()
    assert made.states("report") == ["fired", "waiting", "fired"]


async def test_late_join_expires_and_sends_a_notification(made: Jobs) -> None:
    told = {"steward_notify": "missed", "steward_notify_webhook": "https://example.org/x"}
    await made.register(follower("report", "a, b", join="all", within="1h", meta=told))
    await made.run("a")
    await made.settle()
    made.cluster.wait(HOUR / 10**9 - 1)
    await made.settle()
    assert made.states("report") == ["waiting"]
    made.cluster.wait(1)
    await made.settle()
    (line,) = made.ledger("report")
    assert (line.state, line.reason) == ("expired", "default/b did not end in time")
    sent = made.store.read(lambda db: list(notifications.of_job(db, "default", "report")))
    assert [notification.reason for notification in sent] == [
        'run 0 of "default/a" did not start it: default/b did not end in time'
    ]


async def test_new_version_of_a_follower_decides_again_about_waiting_runs(made: Jobs) -> None:
    await made.register(follower("report", "a, b, c", join="all"))
    await made.run("a")
    await made.run("b")
    await made.settle()
    await made.register(follower("report", "b", join="each"))
    await made.settle()
    first, second = made.ledger("report")
    assert (first.state, first.reason) == ("refused", "the job no longer follows default/a")
    assert second.state == "fired"


async def test_meta_of_the_run_is_passed_to_the_child(made: Jobs) -> None:
    texts = '{"day": "${meta.day}", "from": "${run.job} ${run.number} ${run.status}", "x": "-"}'
    await made.register(
        follower("load", "extract", passes=texts, required=["day", "from"], optional=["x"])
    )
    await made.run("extract", meta={"day": "mon"})
    await made.settle()
    meta = made.child("load").meta or {}
    assert {name: meta[name] for name in ("day", "from", "x")} == {
        "day": "mon",
        "from": "extract 0 succeeded",
        "x": "-",
    }


async def test_join_passes_the_first_nonempty_text(made: Jobs) -> None:
    await made.register(
        follower("load", "a, b", join="all", passes='{"day": "${meta.day}"}', optional=["day"])
    )
    await made.run("b", meta={"day": "tue"})
    await made.run("a")
    await made.settle()
    assert (made.child("load").meta or {})["day"] == "tue"


async def test_purged_source_starts_its_followers_unless_its_values_are_needed(
    made: Jobs,
) -> None:
    await made.register(
        follower("load", "extract"),
        follower("report", "extract", passes='{"day": "${meta.day}"}', optional=["day"]),
    )
    await made.run("extract")
    await made.store.write(lambda tx: jobs.purge(tx, made.cluster.job("extract")))
    await made.settle()
    assert made.states("load") == ["fired"]
    (line,) = made.ledger("report")
    assert (line.state, line.reason) == (
        "refused",
        'run 0 of "default/extract" was deleted before its values could be read',
    )


async def test_impossible_dispatch_is_recorded(made: Jobs) -> None:
    await made.register(follower("load", "extract", required=["day"]))
    await made.run("extract")
    await made.settle()
    (line,) = made.ledger("load")
    assert (line.state, line.reason) == (
        "refused",
        "Dispatch did not provide required meta keys: [day]",
    )
    assert made.store.read(triggers.totals) == {"refused": 1}


async def test_a_child_that_would_exceed_a_limit_is_refused(made: Jobs) -> None:
    await made.register(
        follower("load", "extract", passes='{"day": "${meta.day}"}', optional=["day"])
    )
    await made.run("extract", meta={"day": "x" * 20_000})
    await made.settle(Budgets(job_max_kb=8))
    (line,) = made.ledger("load")
    assert line.state == "refused"
    assert "job_max_kb" in line.reason


async def test_cyclic_chain_ends_after_32_runs(made: Jobs) -> None:
    await made.register(follower("ping", "start, pong"), follower("pong", "ping"))
    await made.run("start")
    for _ in range(33):
        await made.settle()
        for name in ("ping", "pong"):
            for entry in made.ledger(name):
                if entry.child_id:
                    await made.end(entry.child_id)
    await made.settle()
    fired = sum(made.states(name).count("fired") for name in ("ping", "pong"))
    (refused,) = [entry for entry in made.ledger("ping") if entry.state == "refused"]
    assert (fired, refused.reason) == (
        32,
        "the chain of jobs has 32 runs already; the maximum is 32",
    )


async def test_repeated_decision_about_one_end_starts_one_child(made: Jobs) -> None:
    await made.register(follower("load", "extract"))
    await made.run("extract")
    (line,) = made.store.read(lambda db: triggers.undecided(db, 9))
    await made.decide(line)
    await made.decide(line)
    found = made.store.read(lambda db: children.unstopped(db, "default", "load", 9))
    assert len(found) == 1


async def test_only_the_newest_final_lines_are_retained(
    made: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "KEPT", 2)
    await made.register(follower("load", "extract", when="failure"))
    for number in range(4):
        await made.run("extract", meta={"n": str(number)})
    assert [entry.number for entry in made.ledger("load")] == [2, 3]


async def test_number_of_waiting_ends_is_limited(
    made: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "MOST_WAITING", 1)
    await made.register(follower("load", "extract"))
    for number in range(2):
        await made.run("extract", meta={"n": str(number)})
    assert made.states("load") == ["arrived", "refused"]


async def test_the_run_of_a_workflow_starts_followers_and_passes_outputs(made: Jobs) -> None:
    flow = job("flow", group("a", task(), meta={"steward_outputs": "rows"}), type="batch")
    texts = '{"rows": "${output.a.rows}", "none": "${output.b.rows}"}'
    await made.register(follower("load", "flow", passes=texts, optional=["rows", "none"]), flow)
    (one,) = made.cluster.allocations("flow")
    await report(made.cluster, one, rows="17")
    await made.cluster.work()
    assert made.store.read(lambda db: runs.newest(db, "default", "flow")) is not None
    await made.settle()
    (line,) = made.ledger("load")
    meta = made.child("load").meta or {}
    assert (line.number, line.attempt, meta["rows"], meta["none"]) == (1, 1, "17", "")


async def test_trigger_loop_starts_followers_automatically(made: Jobs) -> None:
    cluster = made.cluster
    with trio.fail_after(HAPPENS_WITHIN):
        async with open_triggers(made.store, made.clock, made.ids, cluster.fences, BUDGETS):
            await made.register(follower("load", "extract"))
            await made.run("extract")
            while made.states("load") != ["fired"]:
                with made.store.watch(triggers.topic("default", "load")) as change:
                    if made.states("load") != ["fired"]:
                        await change.wait()
    assert made.child("load").parent_id == "load"


# --- rules of registration ---


def everywhere(_: str) -> bool:
    return True


async def test_follower_needs_capabilities_for_its_job_and_its_sources(made: Jobs) -> None:
    one = follower("load", "extract, billing/pay")
    asked = partial(follow_errors, job=one)

    def errors(readable: set[str], *, dispatch: bool) -> list[str]:
        return made.store.read(
            lambda db: list(
                asked(
                    db,
                    may_read=lambda name: name in readable,
                    may_dispatch=lambda _: dispatch,
                )
            )
        )

    assert errors({"default", "billing"}, dispatch=True) == []
    assert errors({"default"}, dispatch=False) == [
        "steward_after starts the job automatically, so it needs the capability dispatch-job or "
        'submit-job in namespace "default"',
        'steward_after needs the capability read-job in namespace "billing", whose jobs it lists',
    ]


async def test_a_source_has_a_limited_number_of_followers(
    made: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.jobs.followers.MOST_FOLLOWERS", 1)
    await made.register(follower("load", "extract"))

    def errors(job_id: str) -> list[str]:
        one = follower(job_id, "extract")
        return made.store.read(lambda db: list(follow_errors(db, one, everywhere, everywhere)))

    assert errors("load") == []
    assert errors("other") == ['1 jobs follow "default/extract" already; the maximum is 1']


async def test_registration_warns_about_missing_sources_services_and_chains(made: Jobs) -> None:
    await made.register(job("web", group("a", task()), type="service"), follower("b", "a"))
    one = follower("a", "b, web, none")
    told = made.store.read(lambda db: list(follow_warnings(db, one, everywhere)))
    assert told == [
        'steward_after names "default/web", which is of type service and never ends',
        'steward_after names "default/none", which does not exist yet',
        "the chain of jobs is circular: default/a -> default/b -> default/a; it ends after 32 runs",
    ]
