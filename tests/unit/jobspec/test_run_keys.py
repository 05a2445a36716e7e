"""The keys of runs in the meta of a job are checked at registration."""

import pytest

from daemon.flow.advance import RunLimits, limits_of
from daemon.flow.workflow_keys import is_workflow
from daemon.jobspec.steward_meta.check import problems
from storage.records.base import MINUTE
from tests.samples import group, task
from tests.samples import job as made
from tests.unit.jobspec.build import errors, job
from tests.unit.jobspec.hcl.build import parse

PARALLEL = "steward_run_parallel"
ON_FAILURE = "steward_run_on_failure"


def said(kind: str = "batch", **meta: str) -> str:
    return "; ".join(errors(job(Type=kind, Meta=meta)))


@pytest.mark.parametrize("text", ["1", "10000"])
def test_limits_of_active_elements_are_accepted(text: str) -> None:
    assert said(**{PARALLEL: text}) == ""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("0", "must be from 1 to 10000"),
        ("10001", "must be from 1 to 10000"),
        ("many", "must be a whole number from 1 to 10000"),
        ("-1", "must be a whole number from 1 to 10000"),
        ("", "must be a whole number from 1 to 10000"),
    ],
)
def test_invalid_limit_of_active_elements_is_an_error(text: str, error: str) -> None:
    assert said(**{PARALLEL: text}) == f'Meta of job: "{PARALLEL}" is "{text}", {error}'


def test_treatment_of_a_bad_step_is_checked() -> None:
    assert [said(**{ON_FAILURE: text}) for text in ("go-on", "stop")] == ["", ""]
    assert said(**{ON_FAILURE: "halt"}) == (
        f'Meta of job: "{ON_FAILURE}" is "halt", must be go-on or stop'
    )


@pytest.mark.parametrize("kind", ["service", "system", "sysbatch"])
@pytest.mark.parametrize(
    ("key", "text"),
    [
        (PARALLEL, "2"),
        (ON_FAILURE, "stop"),
        ("steward_run_timeout", "1h"),
        ("steward_run_cleanup", "1m"),
    ],
)
def test_only_batch_jobs_have_keys_of_runs(kind: str, key: str, text: str) -> None:
    assert f"{key} needs a job of type batch" in said(kind, **{key: text})


def test_key_of_a_run_in_a_group_is_an_error() -> None:
    one = made("x", group("a", task(), meta={PARALLEL: "2"}), type="batch")

    assert list(problems(one)) == [
        f'Meta of task group "a": "{PARALLEL}" belongs in the meta of a job'
    ]


@pytest.mark.parametrize("meta", [{PARALLEL: "2"}, {ON_FAILURE: "go-on"}])
def test_a_batch_job_with_a_key_of_runs_is_a_workflow(meta: dict[str, str]) -> None:
    assert is_workflow(made("a", group("a", task()), type="batch", meta=meta))


def test_limits_of_a_run_are_read_from_the_job() -> None:
    one = made("a", group("a", task()), type="batch", meta={PARALLEL: "3", ON_FAILURE: "stop"})
    assert limits_of(one) == RunLimits(cleanup=10 * MINUTE, parallel=3, stops=True)


@pytest.mark.parametrize("written", ["meta {\n  %s = 3\n}", 'meta = { %s = "3" }'])
def test_keys_of_runs_are_read_from_hcl(written: str) -> None:
    found = parse('job "a" {\n%s\ngroup "g" {}\n}' % (written % PARALLEL))
    assert found["Meta"] == {PARALLEL: "3"}
