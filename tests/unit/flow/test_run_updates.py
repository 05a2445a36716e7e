"""Whether a new version of a workflow waits for the run of an earlier version."""

from typing import Any

import msgspec
import pytest

from daemon.flow.run_updates import keeps_steps, waits_for, without_own_keys
from storage.records.flow import FlowRun, FlowStatus
from storage.records.job import Job
from tests.samples import job

RUN = FlowRun(namespace="default", job_id="etl", number=1, version=1, began=1)


def updated(**fields: Any) -> Job:
    """Return version 2 of a job that waits for the end of the previous run."""
    given = {"type": "batch", "version": 2, "meta": {"steward_run_update": "finish"}, **fields}
    return job("etl", **given)


def test_version_waits_for_the_run_of_an_earlier_version() -> None:
    assert waits_for(updated(), RUN)


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 1},
        {"stop": True},
        {"type": "service"},
        {"meta": {"steward_run_update": "keep"}},
        {"meta": None},
    ],
)
def test_other_versions_do_not_wait(fields: dict[str, Any]) -> None:
    assert not waits_for(updated(**fields), RUN)


def test_ended_run_delays_no_version() -> None:
    ended = msgspec.structs.replace(RUN, status=FlowStatus.SUCCEEDED)
    assert not waits_for(updated(), ended)


def test_steps_are_kept_only_by_request() -> None:
    assert keeps_steps(updated(meta={"steward_run_update": "keep"}))
    assert not keeps_steps(updated())
    assert not keeps_steps(updated(meta=None))


def test_tasks_get_only_the_keys_of_the_user() -> None:
    assert without_own_keys(updated(meta={"steward_run_update": "keep", "x": "1"})).meta == {
        "x": "1"
    }
    assert without_own_keys(updated(meta=None)).meta == {}
