"""Scaling: a new count creates a version, and a note does not. Both requests are recorded."""

from typing import Any

import pytest

from daemon.jobs.scale import ScalingRequest, scale_job
from daemon.jobs.stop import stop_job
from daemon.jobspec.policies import JobPolicySet
from storage.errors import Conflict, Malformed, NotFound, Refused, StewardError
from storage.queries import deployments, evaluations, job_status, jobs, scaling
from storage.read_pool import ReadSnapshot
from storage.records.deployment import Deployment, DeploymentStatus
from storage.records.job import Job, JobType, Parameterized
from storage.records.scaling import Scaling, ScalingEvent, ScalingPolicy
from storage.store import Store
from storage.writer import Transaction
from tests.parts.api.test_unreadable_rows import change
from tests.samples import NOW, group, job

BOUNDS = Scaling(id="ab-1", type="horizontal", min=1, max=4, target={"Job": "web", "Group": "web"})


async def register(store: Store, stored: Job) -> None:
    def work(tx: Transaction) -> None:
        jobs.append_version(tx, stored)
        job_status.refresh_summary(tx, stored.namespace, stored.id)

    await store.write(work)


async def scale(store: Store, count: int | None = None, **fields: Any) -> Any:
    given = {"target": {"Group": "web"}, "message": "why", "count": count, **fields}
    return await scale_job(
        store,
        "default",
        "web",
        ScalingRequest(**given),
        policies=JobPolicySet(),
        now=NOW,
        eval_id="e-scale",
    )


def current(store: Store) -> Job:
    found = store.read(lambda db: jobs.current(db, "default", "web"))
    assert found is not None
    return found


def events(store: Store) -> list[ScalingEvent]:
    return store.read(lambda db: scaling.events(db, "default", "web")).get("web", [])


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (ScalingRequest(), "missing task group name for scaling action"),
        (ScalingRequest(target={}), "missing task group name for scaling action"),
        (
            ScalingRequest(target={"Group": "web", "Job": "x"}, message="m"),
            "job ID in payload did not match URL",
        ),
        (
            ScalingRequest(target={"Group": "web", "Namespace": "x"}, message="m"),
            "namespace in payload did not match header",
        ),
        (
            ScalingRequest(target={"Group": "nope"}, message="m"),
            'task group "nope" specified for scaling does not exist in job',
        ),
        (
            ScalingRequest(target={"Group": "web"}, count=-1, message="m"),
            "scaling action count can't be negative",
        ),
        (
            ScalingRequest(target={"Group": "web"}, count=2, error=True),
            "scaling action should not contain count if error is true",
        ),
        (
            ScalingRequest(target={"Group": "web"}, count=2),
            "scaling action must contain a message or an error",
        ),
        (
            ScalingRequest(target={"Group": "web"}, count=9, message="m"),
            "group count was greater than scaling policy maximum: 9 > 4",
        ),
        (
            ScalingRequest(target={"Group": "web"}, count=0, message="m"),
            "group count was less than scaling policy minimum: 0 < 1",
        ),
        (
            ScalingRequest(target={"Group": "web"}, error=3, message="m"),
            "json: cannot unmarshal number into Go struct field ScalingRequest.Error of type bool",
        ),
    ],
)
async def test_invalid_request_changes_nothing(
    store: Store, request_: ScalingRequest, text: str
) -> None:
    await register(store, job("web", group("web", scaling=BOUNDS)))
    with pytest.raises(Malformed) as caught:
        await scale_job(
            store, "default", "web", request_, policies=JobPolicySet(), now=NOW, eval_id="e"
        )
    assert str(caught.value) == text
    assert (current(store).version, events(store)) == (0, [])


async def test_an_unknown_job_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound, match='job "web" not found'):
        await scale(store, 2)


async def test_count_creates_a_version_an_evaluation_and_an_event(store: Store) -> None:
    await register(store, job("web", group("web", scaling=BOUNDS), group("other", count=7)))
    done = await scale(store, 3, meta={"by": "me"})
    stored = current(store)
    assert [task_group.count for task_group in stored.task_groups or ()] == [3, 7]
    assert (stored.version, stored.job_modify_index) == (1, done.index)
    found = store.read(lambda db: evaluations.find(db, "e-scale"))
    assert found is not None
    assert (found.triggered_by, found.job_modify_index) == ("job-scaling", done.index)
    (event,) = events(store)
    assert (event.count, event.previous_count, event.eval_id) == (3, 1, "e-scale")
    assert (event.message, event.meta, event.create_index) == ("why", {"by": "me"}, done.index)


async def test_same_count_creates_a_new_version(store: Store) -> None:
    await register(store, job("web"))
    await scale(store, 1)
    assert current(store).version == 1


async def test_message_without_a_count_is_only_an_event(store: Store) -> None:
    await register(store, job("web"))
    before = current(store)
    done = await scale(store)
    assert (done.eval_id, done.job_modify_index) == ("", before.modify_index)
    assert current(store) == before
    assert events(store)[0].count is None


@pytest.mark.parametrize(
    ("message", "error", "kept"),
    [
        ("why", True, ("why", True)),
        ("", "no metrics", ("no metrics", True)),
        ("why", "no metrics", ("why: no metrics", True)),
        ("why", "", ("why", False)),
    ],
)
async def test_error_can_be_a_text_or_a_flag(
    store: Store, message: str, error: object, kept: tuple[str, bool]
) -> None:
    await register(store, job("web"))
    await scale(store, message=message, error=error)
    assert (events(store)[0].message, events(store)[0].error) == kept


async def test_newest_twenty_events_of_a_group_are_retained(store: Store) -> None:
    await register(store, job("web"))
    for number in range(23):
        await scale(store, message=f"note {number}")
    assert [event.message for event in events(store)] == [f"note {n}" for n in range(22, 2, -1)]


async def test_system_job_scales_to_zero_or_one(store: Store) -> None:
    await register(store, job("web", type=JobType.SYSTEM))
    with pytest.raises(Malformed, match=r'^jobs of type "system" can only be scaled between 0'):
        await scale(store, 2)
    await scale(store, 0)
    assert current(store).version == 1


async def test_counts_of_all_groups_share_a_limit(store: Store) -> None:
    await register(store, job("web", group("web"), group("other", count=2)))
    with pytest.raises(Refused, match=r"^total count was .* job_max_count: 50001 > 50000$"):
        await scale(store, 49_999)
    await scale(store, 49_998)
    assert current(store).version == 1


async def test_steps_of_a_workflow_have_a_limit_of_their_own(store: Store) -> None:
    after = group("after", meta={"steward_needs": "web"})
    await register(store, job("web", group("web"), after, type=JobType.BATCH))
    message = "^Task group web has count = 10001; the maximum of a step is 10000$"
    with pytest.raises(Refused, match=message):
        await scale(store, 10_001)
    await scale(store, 10_000)
    assert current(store).version == 1


async def test_sysbatch_job_can_run_several_times_on_a_node(store: Store) -> None:
    await register(store, job("web", type=JobType.SYSBATCH))
    await scale(store, 2)
    (group_of_job,) = current(store).task_groups or ()
    assert group_of_job.count == 2


async def test_job_with_an_active_deployment_is_not_scaled(store: Store) -> None:
    await register(store, job("web"))
    await store.write(lambda tx: deployments.put(tx, deployment(), NOW))
    with pytest.raises(Malformed, match="blocked due to active deployment"):
        await scale(store, 2)
    await scale(store)  # a note changes nothing


def deployment() -> Deployment:
    return Deployment(
        id="d1",
        namespace="default",
        job_id="web",
        job_version=0,
        job_modify_index=1,
        job_spec_modify_index=1,
        job_create_index=1,
        task_groups={},
        status=DeploymentStatus.PAUSED,
        status_description="",
        eval_priority=50,
        create_index=0,
        modify_index=0,
        create_time=0,
        modify_time=0,
    )


@pytest.mark.parametrize(
    ("fields", "loses"),
    [
        ({"job_modify_index": 99}, True),
        ({"job_modify_index": 99, "enforce_index": True}, True),
        ({"enforce_index": True}, True),  # 0: there must be no such job
        ({"job_modify_index": 99, "count": None}, False),  # nothing is changed
        ({"job_modify_index": 99, "count": None, "enforce_index": True}, True),
    ],
)
async def test_index_enforced_by_the_caller_is_compared(
    store: Store, fields: dict[str, Any], loses: bool
) -> None:
    await register(store, job("web"))
    error: StewardError | None = None
    try:
        await scale(store, **{"count": 2, **fields})
    except Conflict as conflict:
        error = conflict
    assert (error is not None) == loses
    await scale(store, 2, enforce_index=True, job_modify_index=current(store).job_modify_index)


async def test_parent_job_gets_no_evaluation(store: Store) -> None:
    await register(store, job("web", type="batch", parameterized_job=Parameterized()))
    done = await scale(store, 2)
    assert (done.eval_id, done.job_modify_index) == ("", done.index)


async def test_stopped_job_remains_stopped(store: Store) -> None:
    await register(store, job("web"))
    await stop(store, purge=False)
    await scale(store, 2)
    assert current(store).stop


async def stop(store: Store, *, purge: bool) -> None:
    options = {"purge": purge, "eval_priority": 0, "no_shutdown_delay": False}
    await stop_job(store, "default", "web", now=NOW, eval_id="e-stop", **options)


def policies(db: ReadSnapshot) -> list[ScalingPolicy]:
    return [one.policy for one in scaling.policies(db)]


async def test_policy_list_names_an_unreadable_job(store: Store) -> None:
    await register(store, job("web", group("web", scaling=BOUNDS)))
    await register(store, job("other", group("web", scaling=BOUNDS)))
    change(store, "UPDATE job_versions SET document = '{' WHERE job_id = 'other'")
    assert [policy.id for policy in store.read(policies)] == ["ab-1"]
    assert store.unreadable_rows.rows() == [("job_versions", ("default", "other", 0))]


async def test_policies_of_the_newest_versions_are_listed_and_disabled_for_a_stopped_job(
    store: Store,
) -> None:
    await register(store, job("web", group("web", scaling=BOUNDS), group("other")))
    await register(store, job("plain"))
    await scale(store, 2)
    (found,) = store.read(policies)
    assert (found.id, found.min, found.max, found.target["Group"]) == ("ab-1", 1, 4, "web")
    assert store.read(lambda db: [*scaling.policies(db, "default", "plain")]) == []
    assert store.read(lambda db: [*scaling.policies(db, "elsewhere")]) == []
    await stop(store, purge=False)
    (kept,) = store.read(policies)
    assert (kept.id, kept.enabled, kept.modify_index > found.modify_index) == ("ab-1", False, True)
    await register(store, job("web", group("web", scaling=BOUNDS)))
    (again,) = store.read(policies)
    assert (again.id, again.enabled) == ("ab-1", True)
    await stop(store, purge=True)
    assert store.read(policies) == []


async def test_scaling_events_are_deleted_with_a_purge(store: Store) -> None:
    await register(store, job("web"))
    await scale(store)
    await stop(store, purge=True)
    assert events(store) == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"message": "x" * 4097}, "Message has 4097 characters; the maximum is 4096"),
        ({"error": "x" * 4097}, "Error has 4097 characters; the maximum is 4096"),
        ({"meta": {"k": "x" * 70_000}}, "Meta has 70008 bytes of JSON; the maximum is 65536"),
    ],
)
async def test_texts_of_an_event_are_limited(
    store: Store, fields: dict[str, Any], text: str
) -> None:
    await register(store, job("web"))
    with pytest.raises(Malformed, match=text):
        await scale(store, **fields)
