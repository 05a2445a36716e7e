"""The keys of queues are checked at registration."""

from typing import Any

import pytest

from daemon.flow import graph
from daemon.flow.workflow_keys import is_workflow
from daemon.jobspec.steward_meta.check import problems as key_problems
from daemon.jobspec.steward_meta.job_keys import queue_of
from storage.records.flow import queues_used
from storage.records.job import Parameterized
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
        (
            {NAME: "${NOMAD_META_env}", "env": "a b"},
            'which results in "a b"; a queue has a name of',
        ),
        ({NAME: "${NOMAD_META_none}"}, 'which results in ""; a queue has a name of'),
    ],
)
def test_invalid_queue_is_an_error(meta: dict[str, str], text: str) -> None:
    assert text in said(**meta)


def test_schedule_with_an_invalid_queue_is_an_error() -> None:
    periodic = {"Spec": "@daily", "SpecType": "cron"}
    texts = errors(job(Type="batch", Meta={NAME: "${NOMAD_META_none}"}, Periodic=periodic))
    assert "; ".join(texts).startswith(f'{NAME} is "${{NOMAD_META_none}}", which results in ""')


def test_error_shows_the_beginning_of_a_long_value() -> None:
    text = "x" * 5000
    said_of_step = of_step(steward_for_each=text)
    assert (
        f'"steward_for_each" is "{text[:80]}"... (5000 characters), must be a JSON' in said_of_step
    )
    assert len(said_of_step) < 300


def test_only_batch_jobs_have_a_queue() -> None:
    assert said("service", **{NAME: "db"}) == f"{NAME} needs a job of type batch"


def test_a_batch_job_with_a_queue_is_a_workflow() -> None:
    one = made("a", group("a", task()), type="batch", meta={NAME: "db-${NOMAD_META_env}"})
    assert is_workflow(one)
    assert queue_of(one) == "db-"


STEP = "steward_concurrency"


def of_step(run_queue: str = "", **meta: str) -> str:
    keys = {NAME: run_queue} if run_queue else {}
    one = made("x", group("a", task(), meta=meta), type="batch", meta=keys)
    return "; ".join([*key_problems(one), *graph.problems(one)])


@pytest.mark.parametrize("text", ["db", "db, gpu", "a.b_c-1"])
def test_the_queues_of_a_step_are_accepted(text: str) -> None:
    assert of_step(**{STEP: text, f"{STEP}_slots": "2"}) == ""


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ({STEP: "a b"}, 'has "a b"; a queue has a name of 1 to 128 letters, digits, -, _ and .'),
        ({STEP: "db-${NOMAD_META_env}"}, "a queue has a name of 1 to 128 letters"),
        ({STEP: "db, db"}, 'names "db" twice'),
        ({STEP: ",".join("abcdefghi")}, "must have at most 8 queues"),
        ({STEP: "db", f"{STEP}_slots": "0"}, "must be from 1 to 10000"),
        ({f"{STEP}_slots": "2"}, f"Task group a has {STEP}_slots without {STEP}"),
    ],
)
def test_invalid_queues_of_a_step_are_errors(meta: dict[str, str], text: str) -> None:
    assert text in of_step(**meta)


def test_steps_of_a_run_do_not_wait_for_the_queue_of_the_run() -> None:
    assert of_step("db", **{STEP: "gpu, db"}) == (
        f'Task group a names the queue "db", which {NAME} also names; a queue is for runs or for steps'
    )


@pytest.mark.parametrize(
    ("fields", "used"),
    [
        ({}, {"db-prod": "runs", "gpu": "steps"}),
        ({"parameterized_job": Parameterized()}, {"gpu": "steps"}),
        (
            {"parameterized_job": Parameterized(), "dispatched": True},
            {"db-prod": "runs", "gpu": "steps"},
        ),
    ],
)
def test_queues_used_by_a_job_are_listed(fields: dict[str, Any], used: dict[str, str]) -> None:
    meta = {NAME: "db-${NOMAD_META_env}", "env": "prod"}
    one = made("x", group("a", task(), meta={STEP: "gpu"}), type="batch", meta=meta, **fields)
    assert queues_used(one) == used
