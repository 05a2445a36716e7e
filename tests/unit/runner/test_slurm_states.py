"""Job states of a cluster, and their translation."""

import pytest

from daemon.runner.core.driver import ExitResult
from daemon.runner.drivers.slurm import job_states
from daemon.runner.drivers.slurm.job_states import (
    SlurmJobState,
    end_of,
    ended_by_cluster,
    parse_job_list,
    waits,
)

NAME = "alloc-1"


def shown(state: str, code: str, name: str = NAME) -> str:
    return (
        f"JobId=7 JobName={name} UserId=root(0) JobState={state} Reason=None Requeue=0 "
        f"ExitCode={code} Comment=1/main/0"
    )


def sighting(state: str, reason: str = "None", host: str = "") -> SlurmJobState:
    return SlurmJobState(job_id="7", state=state, reason=reason, host=host, name=NAME, user=0)


@pytest.mark.parametrize(
    ("state", "code", "end"),
    [
        ("FAILED", "3:0", (3, 0)),
        ("FAILED", "0:15", (143, 15)),
        ("FAILED", "137:0", (137, 9)),
        ("CANCELLED", "0:15", (137, 9)),
        ("TIMEOUT", "0:0", (137, 9)),
        ("NODE_FAIL", "0:0", (137, 9)),
        ("COMPLETED", "0:0", (0, 0)),
    ],
)
def test_exit_is_reported_with_its_code_and_source(
    state: str, code: str, end: tuple[int, int]
) -> None:
    found = end_of(shown(state, code), NAME)
    assert found is not None
    assert (found.code, found.signal) == end
    assert "the cluster reports" in found.message
    assert not found.ok


def test_task_over_its_memory_limit_was_oom_killed() -> None:
    found = end_of(shown("OUT_OF_MEMORY", "0:125"), NAME)
    assert found is not None
    assert found.oom_killed


@pytest.mark.parametrize(
    ("state", "expected"),
    [("TIMEOUT", True), ("CANCELLED", True), ("FAILED", False), ("COMPLETED", False)],
)
def test_cluster_is_responsible_for_some_exits(state: str, expected: bool) -> None:
    assert ended_by_cluster(shown(state, "0:15")) is expected


def test_running_or_renamed_job_has_no_exit() -> None:
    assert end_of(shown("RUNNING", "0:0"), NAME) is None
    assert end_of(shown("FAILED", "3:0", "other"), NAME) is None
    assert end_of("slurm_load_jobs error: Invalid job id specified", NAME) is None


@pytest.mark.parametrize(
    ("code", "said"),
    [("91:0", "claimed"), ("92:0", "directory"), ("90:0", "wrapper_url"), ("93:0", "curl")],
)
def test_exits_of_the_wrapper_are_described(code: str, said: str) -> None:
    found = end_of(shown("FAILED", code), NAME)
    assert found is not None
    assert said in found.message


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Resources", "the cluster has no free resources (Resources)"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n1",
            "a host that it needs is currently not available (ReqNodeNotAvail, UnavailableNodes:n1)",
        ),
        (
            "QOSMaxCpuPerUserLimit",
            "a limit of the account, its quality of service or the partition is reached "
            "(QOSMaxCpuPerUserLimit)",
        ),
        ("SomethingNew", "SomethingNew"),
    ],
)
def test_reason_contains_the_original_state(reason: str, said: str) -> None:
    assert waits(reason) == said


def test_listing_lines_are_parsed_and_malformed_ones_ignored() -> None:
    text = (
        "7|PENDING|Priority||alloc-1|0\nslurm_load: noise\n\n"
        "x|RUNNING|None|node1|alloc-2|0\n8|RUNNING|None|node1|alloc-2|0\n"
    )
    first, second = parse_job_list(text)
    assert (first.name, first.is_waiting, first.is_active) == ("alloc-1", True, True)
    assert (second.host, second.is_waiting, second.is_active) == ("node1", False, True)


def test_refused_launch_is_stuck() -> None:
    assert sighting("PENDING", "launch failed requeued held").is_stuck
    assert not sighting("PENDING", "Resources").is_stuck
    assert not sighting("CANCELLED", "launch failed requeued held").is_stuck


def test_job_has_its_state() -> None:
    assert sighting("SUSPENDED", host="node1").description == "job 7 is suspended on node1"
    assert sighting("PENDING", "Priority").description == (
        "job 7 waits: other waiting jobs of the cluster have precedence (Priority)"
    )
    assert sighting("STAGE_OUT").description == "job 7 is stage out"
    assert sighting("CONFIGURING").description == "job 7: the cluster is preparing a host"
    assert sighting("CONFIGURING", host="node1").description == (
        "job 7: the cluster is preparing node1"
    )


@pytest.mark.parametrize(
    "message",
    [
        "Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch did not answer within 12 s",
    ],
)
def test_failed_query_gives_no_information_about_the_job(message: str) -> None:
    assert job_states.may_have_succeeded(message) or "did not answer" in message


def test_refusal_is_recognized() -> None:
    message = "Batch job submission failed: Invalid feature specification"
    assert not job_states.may_have_succeeded(message)
    assert not job_states.may_recover(message)
    assert job_states.may_recover(
        "Job violates accounting/QOS policy (job submit limit, user's size)"
    )


def test_vanished_cluster_job_is_no_success() -> None:
    assert isinstance(job_states.GONE, ExitResult)
    assert not job_states.GONE.ok
