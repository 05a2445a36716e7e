"""The state of a job, read from the store: each state occurs, and is correct."""

import msgspec
import pytest

from daemon.evals import explain, failures, job_states
from daemon.jobs.dispatch import DispatchRequestData, dispatch_job
from daemon.jobs.evaluate import new_evaluation
from daemon.runner.core import task_events
from daemon.text.job_state import SETTLED_AFTER, JobState, State
from storage.queries import (
    allocations,
    deployments,
    evaluations,
    job_listings,
    job_status,
    periodic,
)
from storage.queries.pages import PageRequest
from storage.records.allocation import ClientStatus, StoredTaskEvent, TaskEvent, TaskState
from storage.records.base import SECOND
from storage.records.evaluation import EvalStatus, Trigger
from storage.records.group import ReschedulePolicy, Update
from storage.records.job import Job, Parameterized, Periodic
from storage.records.task import Resources
from storage.records.times import rfc3339
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, group, job, task
from tests.unit.scheduler.world import small

NEVER = ReschedulePolicy(attempts=0, unlimited=False)
TERMINATED = TaskEvent(
    type="Terminated", time=NOW + 2, exit_code=3, details={"oom_killed": "false"}
)


@pytest.fixture
async def full(cluster: Cluster) -> Cluster:
    """A cluster whose only node has capacity for five default tasks."""
    await cluster.join(small())
    return cluster


def state(cluster: Cluster, job_id: str = "web", now: int = NOW) -> JobState:
    found = cluster.store.read(lambda db: job_states.state_of(db, "default", job_id, now))
    assert found is not None
    return found


async def run(cluster: Cluster, job: Job) -> None:
    await cluster.register(job)
    await cluster.work()


async def tell(
    cluster: Cluster, status: ClientStatus, task_state: TaskState, *happened: TaskEvent
) -> None:
    """Report a state of the newest allocation of `web`."""

    def write(tx: Transaction) -> None:
        alloc = allocations.of_job(tx, "default", "web")[0]
        client = msgspec.structs.replace(alloc.client, task_states={"main": task_state})
        changed = msgspec.structs.replace(alloc, client_status=status, client=client)
        allocations.set_client(tx, changed, NOW)
        allocations.add_events(tx, alloc.id, {"main": happened})

    await cluster.store.write(write)


async def test_an_unknown_job_has_no_state(cluster: Cluster) -> None:
    assert cluster.store.read(lambda db: job_states.state_of(db, "default", "web", NOW)) is None


async def test_group_without_capacity_is_blocked_and_names_the_reason(full: Cluster) -> None:
    huge = task(resources=Resources(cpu=20, memory_mb=10**9))
    await run(full, job("web", group("g", huge)))
    found = state(full)
    assert found.word == State.BLOCKED
    assert "less than 1000000000 MiB of memory left" in found.reason


async def test_batch_job_without_capacity_is_blocked(full: Cluster) -> None:
    huge = task(resources=Resources(cpu=20, memory_mb=10**9))
    await run(full, job("web", group("g", huge), type="batch"))
    assert state(full).word == State.BLOCKED


async def test_active_task_is_running(full: Cluster) -> None:
    await run(full, job("web", group("g", count=2)))
    assert state(full).word == State.PENDING
    await full.run_all()
    assert state(full) == JobState(State.RUNNING)


async def test_restarting_task_is_failing_until_settled(full: Cluster) -> None:
    await run(full, job("web", group("g")))
    restarted = TaskState(state="pending", restarts=1, last_restart=rfc3339(NOW))
    restarting = task_events.restarting(NOW + 3, "Restart within policy", SECOND)
    await tell(full, ClientStatus.PENDING, restarted, TERMINATED, restarting)
    assert state(full) == JobState(State.FAILING, 'task "main" exited with code 3')
    again = msgspec.structs.replace(restarted, state="running")
    await tell(full, ClientStatus.RUNNING, again, task_events.started(NOW + 4))
    assert state(full).word == State.FAILING
    assert state(full, now=NOW + SETTLED_AFTER).word == State.RUNNING


async def test_restart_on_request_is_no_failure(full: Cluster) -> None:
    await run(full, job("web", group("g")))
    restarted = TaskState(state="running", restarts=1, last_restart=rfc3339(NOW))
    task_event = task_events.restart_signaled(NOW, task_events.BY_USER)
    await tell(full, ClientStatus.RUNNING, restarted, task_event)
    assert state(full).word == State.RUNNING


@pytest.mark.parametrize("description", [task_events.BY_USER, "Template with change_mode restart"])
async def test_end_of_an_attempt_before_a_restart_on_request_is_no_error(
    full: Cluster, description: str
) -> None:
    await run(full, job("web", group("g")))
    restarted = TaskState(state="running", restarts=1, last_restart=rfc3339(NOW))
    happened = (
        task_events.restart_signaled(NOW, description),
        TERMINATED,
        task_events.restarting(NOW + 2, "", 0),
        task_events.started(NOW + 3),
    )
    await tell(full, ClientStatus.RUNNING, restarted, *happened)
    assert state(full) == JobState(State.RUNNING)
    assert full.store.read(lambda db: failures.newest_error(db, "default", "web")) is None


async def test_restart_by_a_check_is_a_failure(full: Cluster) -> None:
    await run(full, job("web", group("g")))
    restarted = TaskState(state="running", restarts=1, last_restart=rfc3339(NOW))
    happened = (
        task_events.restart_signaled(NOW, 'healthcheck: check "alive" unhealthy'),
        TERMINATED,
        task_events.restarting(NOW + 2, "Restart within policy", SECOND),
        task_events.started(NOW + 3),
    )
    await tell(full, ClientStatus.RUNNING, restarted, *happened)
    assert state(full).word == State.FAILING


async def test_permanent_failure_names_its_error(full: Cluster) -> None:
    await run(full, job("web", group("g", reschedule_policy=NEVER), type="batch"))
    dead = TaskState(state="dead", failed=True)
    stored_task_event = StoredTaskEvent(
        **msgspec.structs.asdict(TERMINATED), steward_stderr="no disk\n"
    )
    await tell(full, ClientStatus.FAILED, dead, stored_task_event)
    assert state(full) == JobState(State.FAILED, 'task "main" exited with code 3')
    error = full.store.read(lambda db: failures.newest_error(db, "default", "web"))
    assert error is not None
    assert (error.exit_code, error.stderr, error.task) == (3, "no disk\n", "main")


@pytest.mark.parametrize(
    ("status", "code"),
    [(ClientStatus.COMPLETE, None), (ClientStatus.RUNNING, 0)],  # a completed service is not normal
)
async def test_successful_exit_is_an_error_only_for_services(
    full: Cluster, status: ClientStatus, code: int | None
) -> None:
    await run(full, job("web", group("g", reschedule_policy=NEVER), type="batch"))
    await tell(
        full, status, TaskState(state="dead"), msgspec.structs.replace(TERMINATED, exit_code=0)
    )

    error = full.store.read(
        lambda db: failures.of_allocation(db, allocations.of_job(db, "default", "web")[0])
    )
    assert (error and error.exit_code) == code


async def test_the_last_lines_of_a_task_are_not_part_of_its_events(full: Cluster) -> None:
    await run(full, job("web", group("g")))
    stored_task_event = StoredTaskEvent(
        **msgspec.structs.asdict(TERMINATED), steward_stderr="no disk\n"
    )
    await tell(full, ClientStatus.FAILED, TaskState(state="dead", failed=True), stored_task_event)
    one = full.store.read(lambda db: allocations.of_job(db, "default", "web")[0])
    shown = full.store.read(lambda db: allocations.task_states(db, one))
    assert b"no disk" not in msgspec.json.encode(shown)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            TaskEvent(type="Terminated", time=NOW, signal=9, details={"oom_killed": "false"}),
            'task "main" was ended by SIGKILL',
        ),
        (
            TaskEvent(type="Terminated", time=NOW, exit_code=137, details={"oom_killed": "true"}),
            'task "main" was killed because it used more memory than its limit',
        ),
        (
            task_events.driver_failure(NOW, "no such program: /bin/flase"),
            'task "main": no such program: /bin/flase',
        ),
        (
            task_events.download_failed(NOW, "http://x/y: 404 Not Found"),
            'task "main": http://x/y: 404 Not Found',
        ),
    ],
)
async def test_an_error_is_reported_in_one_sentence(
    full: Cluster, event: TaskEvent, said: str
) -> None:
    await run(full, job("web", group("g", reschedule_policy=NEVER), type="batch"))
    await tell(full, ClientStatus.FAILED, TaskState(state="dead", failed=True), event)
    assert state(full).reason == said


async def test_task_that_waits_for_a_template_is_reported(full: Cluster) -> None:
    await run(full, job("web", group("g")))
    waits = task_events.template(NOW, "Missing: nomad.var.block(nomad/jobs/web@default.global)")
    await tell(full, ClientStatus.PENDING, TaskState(state="pending"), waits)
    assert state(full).word == State.PENDING
    assert "nomad/jobs/web" in state(full).reason


async def test_a_failed_template_is_the_cause_of_a_failure(full: Cluster) -> None:
    await run(full, job("web", group("g", reschedule_policy=NEVER), type="batch"))
    events = (
        task_events.template(NOW, "Template failed: local/x: line 1: no such function"),
        TaskEvent(type="Not Restarting", time=NOW + 1, display_message="Policy allows no restarts"),
    )
    await tell(full, ClientStatus.FAILED, TaskState(state="dead", failed=True), *events)
    text = 'task "main": Template failed: local/x: line 1: no such function'
    assert state(full) == JobState(State.FAILED, text)


async def test_template_error_of_a_started_task_is_no_cause(full: Cluster) -> None:
    await run(full, job("web", group("g", reschedule_policy=NEVER), type="batch"))
    events = (
        task_events.template(NOW, "Missing: x"),
        TaskEvent(type="Started", time=NOW + 1),
        TERMINATED,
    )
    await tell(full, ClientStatus.FAILED, TaskState(state="dead", failed=True), *events)
    assert state(full).reason == 'task "main" exited with code 3'


async def test_a_failure_is_retried_until_its_evaluation_has_decided(full: Cluster) -> None:
    delayed = ReschedulePolicy(unlimited=True, delay=30 * SECOND, delay_function="constant")
    await run(full, job("web", group("g", reschedule_policy=delayed)))
    (one,) = full.allocations()
    await full.report(one, ClientStatus.FAILED)
    again = new_evaluation(full.job(), next(full.ids), Trigger.ALLOC_RESCHEDULE)
    await full.store.write(lambda tx: evaluations.put(tx, again, NOW))
    await full.work()
    (follow_up,) = full.evaluations(EvalStatus.PENDING)
    assert state(full).word == State.FAILING

    def decide(tx: Transaction) -> None:
        done = msgspec.structs.replace(follow_up, status=EvalStatus.COMPLETE)
        evaluations.put(tx, done, NOW)

    await full.store.write(decide)
    assert state(full).word == State.FAILED


async def test_a_failed_deployment_names_the_check(full: Cluster) -> None:
    await run(full, job("web", group("g", update=Update(max_parallel=1))))
    (one,) = full.allocations()
    await full.report(one, ClientStatus.RUNNING, healthy=False)
    text = 'Services not healthy by deadline: check "c" of service "s" fails with status 503'
    event = task_events.unhealthy(NOW, *text.split(": ", 1))
    latest = full.deployment()
    counted = msgspec.structs.replace(latest.task_groups["g"], unhealthy_allocs=1)

    def write(tx: Transaction) -> None:
        allocations.add_events(tx, one.id, {"main": (event,)})
        deployments.put(tx, msgspec.structs.replace(latest, task_groups={"g": counted}), NOW)

    await full.store.write(write)
    assert state(full).word == State.DEPLOYING
    assert text in state(full).reason
    found = full.store.read(lambda db: explain.explain_job(db, "default", "web"))
    assert found is not None
    assert [reason.message for reason in found.reasons] == [
        f'web.g[0] is unhealthy: task "main": {text}'
    ]


PARENT = Parameterized()


async def test_state_of_a_parent_depends_on_its_runs(full: Cluster) -> None:
    await run(full, job("web", group("g"), type="batch", parameterized_job=PARENT))
    assert state(full) == JobState(State.SCHEDULED, "no run has ended yet")


async def test_only_an_ended_run_has_an_end_and_a_duration(full: Cluster) -> None:
    await run(full, job("web", group("g"), type="batch", parameterized_job=PARENT))
    nothing = DispatchRequestData(payload=b"", meta={})
    children = [
        await dispatch_job(
            full.store, "default", "web", nothing, now=NOW, ids=full.ids, suffix=str(number)
        )
        for number in range(2)
    ]
    await full.work()
    for child in children:
        await full.run_all(child.job_id)
    full.wait(5)
    (alloc,) = full.allocations(children[0].job_id)
    await full.report(alloc, ClientStatus.COMPLETE)
    await full.work()
    active, ended = full.store.read(
        lambda db: list(job_states.runs(db, "default", "web", full.clock.now(), 9))
    )
    assert (ended.id, ended.result) == (children[0].job_id, State.COMPLETE)
    assert (ended.ended, ended.duration) == (full.clock.now(), 5 * SECOND)
    assert (active.id, active.result) == (children[1].job_id, State.RUNNING)
    assert (active.started, active.ended, active.duration) == (NOW, 0, 0)


async def test_job_with_a_paused_schedule_is_paused(full: Cluster) -> None:
    await run(full, job("web", group("g"), type="batch", periodic=Periodic(spec="@daily")))
    assert state(full).word == State.SCHEDULED
    await full.store.write(lambda tx: periodic.set_paused(tx, "default", "web", paused=True))
    assert state(full).word == State.PAUSED


async def test_job_with_a_disabled_schedule_is_paused(full: Cluster) -> None:
    clock = Periodic(spec="@daily", enabled=False)
    await run(full, job("web", group("g"), type="batch", periodic=clock))
    assert state(full).word == State.PAUSED


async def test_possibly_failed_runs_are_few_among_many_finished_runs(full: Cluster) -> None:
    for number in range(3):
        await run(full, job(f"good-{number}", group("g"), type="batch"))
        for alloc in full.allocations(f"good-{number}"):
            await full.report(alloc, ClientStatus.COMPLETE)
    await run(full, job("web", group("g", reschedule_policy=NEVER), type="batch"))
    await tell(full, ClientStatus.FAILED, TaskState(state="dead", failed=True), TERMINATED)
    await full.store.write(lambda tx: job_status.refresh_summary(tx, "default", "web"))
    found = full.store.read(
        lambda db: list(job_listings.by_change(db, PageRequest(namespace="*"), failed=True))
    )
    assert [job_listing.id for job_listing in found] == ["web"]
    every = full.store.read(lambda db: list(job_listings.by_change(db, PageRequest(namespace="*"))))
    assert len(every) == 4


async def test_stopped_job_reports_the_number_of_ending_allocations(full: Cluster) -> None:
    await run(full, job("web", group("g", count=2)))
    await full.run_all()
    await run(full, msgspec.structs.replace(full.job(), stop=True))
    assert {alloc.desired_status for alloc in full.allocations("web")} == {"stop"}
    assert state(full) == JobState(State.STOPPED, "2 allocations still stopping")
    await full.report(full.allocations("web")[0], ClientStatus.COMPLETE)
    assert state(full) == JobState(State.STOPPED, "1 allocation still stopping")
    await full.run_all()
    assert state(full) == JobState(State.STOPPED)
