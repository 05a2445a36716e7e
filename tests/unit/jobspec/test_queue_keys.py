"""The keys of queues are checked at registration."""

import pytest

from daemon.flow.workflow_keys import is_workflow
from daemon.jobspec.steward_meta import queue_of
from tests.samples import group, task
from tests.samples import job as made
from tests.unit.jobspec.build import errors, job

NAME = "steward_run_concurrency"


def said(kind: str = "batch", **meta: str) -> str:
    return "; ".join(errors(job(Type=kind, Meta=meta)))


@pytest.mark.parametrize(
    "meta",
    [
        {NAME: "db"},
        {NAME: "db-${NOMAD_META_env}", "env": "prod"},
        {NAME: "a.b_c-1", f"{NAME}_slots": "3", f"{NAME}_beyond": "cancel-oldest"},
    ],
)
def test_a_queue_is_accepted(meta: dict[str, str]) -> None:
    assert said(**meta) == ""


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ({NAME: "a b"}, "must be a name of at most 128 letters, digits, -, _ and ."),
        ({NAME: "x" * 129}, "must be a name of at most 128 letters, digits, -, _ and ."),
        ({NAME: "db-${meta.env}"}, "must be a name of at most 128 letters"),
        ({NAME: "db", f"{NAME}_slots": "0"}, "must be from 1 to 10000"),
        (
            {NAME: "db", f"{NAME}_beyond": "drop"},
            "must be queue or skip or newest or cancel-oldest",
        ),
        ({f"{NAME}_slots": "2"}, f"{NAME}_slots needs {NAME}"),
        ({NAME: "${NOMAD_META_env}", "env": "a b"}, 'which makes "a b"; a queue has a name of'),
        ({NAME: "${NOMAD_META_none}"}, 'which makes ""; a queue has a name of'),
    ],
)
def test_a_wrong_queue_is_an_error(meta: dict[str, str], text: str) -> None:
    assert text in said(**meta)


def test_only_batch_jobs_have_a_queue() -> None:
    assert said("service", **{NAME: "db"}) == f"{NAME} needs a job of type batch"


def test_a_batch_job_with_a_queue_is_a_workflow() -> None:
    one = made("a", group("a", task()), type="batch", meta={NAME: "db-${NOMAD_META_env}"})
    assert is_workflow(one)
    assert queue_of(one) == "db-"
