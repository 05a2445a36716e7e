"""The state of a job in one word: the rows of docs/states.md."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.text.job_state import DeploymentFacts, JobFacts, JobState, Runs, State, Tally, job_state
from storage.records.flow import FlowRun, FlowStatus

DOCS = Path(__file__).parents[2] / "docs" / "states.md"


def facts(**given: object) -> JobFacts:
    fields = {"type": "service", "status": "running", "version": 1, "wanted": 1, **given}
    return JobFacts(**fields)


def rollout(**given: object) -> DeploymentFacts:
    fields = {
        "version": 1,
        "status": "running",
        "description": "",
        "is_active": True,
        "healthy": 0,
        "unhealthy": 0,
        "wanted": 2,
        **given,
    }
    return DeploymentFacts(**fields)


def flow_run(status: str, reason: str = "") -> FlowRun:
    return FlowRun(
        namespace="default",
        job_id="etl",
        number=1,
        version=1,
        status=FlowStatus(status),
        reason=reason,
    )


FAILED_ROLLOUT = rollout(
    status="failed", description="Failed due to progress deadline", is_active=False
)


@pytest.mark.parametrize(
    ("known", "word"),
    [
        (facts(current=Tally(running=1)), State.RUNNING),
        (facts(current=Tally(pending=1)), State.PENDING),
        (facts(status="pending"), State.PENDING),
        (facts(wanted=2, current=Tally(running=1)), State.DEGRADED),
        (facts(wanted=2, current=Tally(running=1, pending=1, failing=1)), State.DEGRADED),
        (facts(current=Tally(pending=1, failing=1)), State.FAILING),
        (facts(current=Tally(running=1, failing=1, unsettled=1)), State.FAILING),
        (facts(current=Tally(failed=1, retried=1)), State.FAILING),
        (facts(current=Tally(failed=1)), State.FAILED),
        (facts(status="dead", current=Tally(failed=1)), State.FAILED),
        (facts(blocked="no room"), State.BLOCKED),
        (facts(wanted=2, current=Tally(running=1), blocked="no room"), State.DEGRADED),
        (facts(rollout=rollout(), current=Tally(running=1)), State.DEPLOYING),
        (facts(rollout=rollout(), older=Tally(running=1), blocked="no room"), State.DEPLOYING),
        (facts(rollout=rollout(), blocked="no room"), State.BLOCKED),
        (facts(rollout=rollout(), current=Tally(pending=1, failing=1), error="x"), State.FAILING),
        (facts(rollout=rollout(status="paused"), current=Tally(running=1)), State.PAUSED),
        (facts(rollout=FAILED_ROLLOUT, older=Tally(running=1)), State.DEGRADED),
        (facts(rollout=FAILED_ROLLOUT), State.FAILED),
        (facts(current=Tally(unknown=1)), State.DEGRADED),
        (facts(wanted=0, status="dead"), State.COMPLETE),
        (facts(is_stopped=True, current=Tally(running=1)), State.STOPPED),
        (facts(is_held=True, status="pending"), State.PENDING),
        (facts(type="system", wanted=None, current=Tally(running=2)), State.RUNNING),
        (facts(type="system", wanted=None, current=Tally(running=2, failed=1)), State.DEGRADED),
        (facts(type="batch", current=Tally(running=1)), State.RUNNING),
        (facts(type="batch", status="dead", current=Tally(complete=1)), State.COMPLETE),
        (facts(type="batch", status="dead", current=Tally(complete=1, failed=1)), State.FAILED),
        (facts(type="batch", current=Tally(running=1, failed=1)), State.RUNNING),
        (facts(type="batch", current=Tally(failed=1, retried=1)), State.FAILING),
        (facts(type="batch", status="pending", blocked="no room"), State.BLOCKED),
        (facts(type="batch", status="pending"), State.PENDING),
        (facts(type="batch", current=Tally(failed=1), run=flow_run("succeeded")), State.COMPLETE),
        (facts(type="batch", run=flow_run("failed")), State.FAILED),
        (facts(type="batch", current=Tally(failed=1), run=flow_run("canceled")), State.STOPPED),
        (facts(type="batch", run=flow_run("running")), State.PENDING),
        (facts(type="batch", runs=Runs()), State.SCHEDULED),
        (facts(type="batch", runs=Runs(last=State.COMPLETE)), State.SCHEDULED),
        (facts(type="batch", runs=Runs(last=State.FAILED)), State.FAILING),
        (facts(type="batch", runs=Runs(last=State.FAILED), is_paused=True), State.PAUSED),
        (facts(type="batch", runs=Runs(), is_off=True), State.PAUSED),
        (facts(type="batch", runs=Runs(last=State.FAILED), is_stopped=True), State.STOPPED),
    ],
)
def test_job_state_is_one_word(known: JobFacts, word: State) -> None:
    assert job_state(known).word == word


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (facts(wanted=3, current=Tally(running=2)), "2 of 3 running"),
        (
            facts(
                wanted=3, current=Tally(running=2, failed=1), error='task "t" exited with code 3'
            ),
            '2 of 3 running: task "t" exited with code 3',
        ),
        (
            facts(rollout=rollout(healthy=1, unhealthy=1), current=Tally(running=2)),
            "version 1: 1 of 2 healthy, 1 unhealthy",
        ),
        (
            facts(rollout=FAILED_ROLLOUT, older=Tally(running=1)),
            "1 of 1 running: the deployment of version 1 failed: Failed due to progress deadline",
        ),
        (
            facts(
                type="batch",
                runs=Runs(
                    last=State.FAILED,
                    last_reason='task "t" exited with code 3',
                    recent=(State.FAILED, State.COMPLETE),
                ),
            ),
            'the last run failed: task "t" exited with code 3; 1 of the last 2 failed',
        ),
        (
            facts(rollout=FAILED_ROLLOUT, unhealthy='task "t": check "c" fails'),
            "the deployment of version 1 failed: Failed due to progress deadline: "
            'task "t": check "c" fails',
        ),
        (
            facts(type="batch", run=flow_run("canceled", "canceled by ann")),
            "the run was canceled by ann",
        ),
        (
            facts(type="batch", run=flow_run("canceled", 'no slot of the queue "q" was free')),
            'the run was canceled: no slot of the queue "q" was free',
        ),
        (
            facts(type="batch", run=flow_run("running"), held="step b is held: gate: Go?"),
            "step b is held: gate: Go?",
        ),
        (facts(type="batch", runs=Runs(last=State.COMPLETE)), "the last run succeeded"),
        (
            facts(
                type="batch", is_paused=True, runs=Runs(last=State.FAILED, last_reason="no disk")
            ),
            "the last run failed: no disk",
        ),
    ],
)
def test_a_state_names_its_reason(known: JobFacts, reason: str) -> None:
    assert job_state(known).reason == reason


TALLIES = st.builds(
    Tally,
    pending=st.integers(0, 3),
    running=st.integers(0, 3),
    unknown=st.integers(0, 1),
    complete=st.integers(0, 3),
    failed=st.integers(0, 3),
)
ROLLOUTS = st.none() | st.builds(
    rollout, status=st.sampled_from(["running", "paused"]), is_active=st.just(True)
)


@given(
    st.builds(
        JobFacts,
        type=st.sampled_from(["service", "batch", "system", "sysbatch"]),
        status=st.sampled_from(["pending", "running", "dead"]),
        version=st.just(1),
        is_stopped=st.booleans(),
        is_held=st.booleans(),
        wanted=st.integers(0, 4),
        current=TALLIES,
        older=TALLIES,
        rollout=ROLLOUTS,
        blocked=st.sampled_from(["", "no room"]),
        error=st.sampled_from(["", "exited with code 3"]),
    )
)
def test_state_is_never_better_than_the_facts(known: JobFacts) -> None:
    state = job_state(known)
    alive = known.current.running + known.older.running
    if state.word == State.RUNNING:
        assert alive or known.current.unknown
        assert known.type in ("batch", "sysbatch") or not known.current.failed
    if state.word == State.COMPLETE:
        assert not known.current.alive
        assert not known.current.failed
    if known.blocked and not known.is_stopped and not known.is_held and not known.current.failed:
        said = state.word in (State.BLOCKED, State.DEGRADED) or known.blocked in state.reason
        assert said or known.rollout is not None or known.type in ("batch", "sysbatch")


def test_every_state_is_documented() -> None:
    text = DOCS.read_text()
    assert [item for item in State if f"| **{item}** |" not in text] == []


def test_simple_state_needs_no_reason() -> None:
    assert job_state(facts(current=Tally(running=1))) == JobState(State.RUNNING)
