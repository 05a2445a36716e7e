"""Limits on the size of a job: each is checked, has the same name in the settings, and all are
reported together."""

from typing import Any

import pytest

from daemon.config.settings import Settings
from daemon.jobspec.budgets import Budgets, OverBudget
from storage.records.codec import Document
from tests.unit.jobspec.build import complete, group, job, task
from tests.unit.jobspec.recorded import document

NONE = dict.fromkeys(Budgets.__struct_fields__, 0)
CHECKED_ELSEWHERE = {"job_max_count", "job_max_versions", "job_max_versions_mb"}

WHERE = [{"LTarget": "${meta.a}", "RTarget": "b", "Operand": "="}]
SPREAD = [{"Attribute": "${meta.a}", "SpreadTarget": [{"Value": "a"}, {"Value": "b"}]}]
NETWORK = [{"DynamicPorts": [{"Label": "a"}], "ReservedPorts": [{"Label": "b", "Value": 80}]}]
SERVICES = [{"Name": "a", "Checks": [{"Name": "a"}, {"Name": "b"}]}, {"Name": "b"}]
DEVICES = [{"Name": "gpu", "Constraints": WHERE, "Affinities": WHERE}]

# the setting, a job, the number of limited elements in the job, and the beginning of the error
CASES: list[tuple[str, Document, int, str]] = [
    (
        "job_max_groups",
        job(group(), group()),
        2,
        "TaskGroups: 2 groups, but the limit is 1: split the job",
    ),
    ("job_max_tasks", job(group(task(), task()), group()), 3, "Tasks of all groups: 3 tasks"),
    ("job_max_specs", job(Periodic={"Specs": ["a", "b", "c"]}), 3, "Periodic.Specs: 3 expressions"),
    (
        "job_max_constraints",
        job(group(Spreads=SPREAD), group(Constraints=WHERE), Affinities=WHERE, Datacenters=["a"]),
        3 + 1 + 2 * 2,
        "Constraints, Affinities, Spreads and Datacenters (those of the job once per group): 8",
    ),
    (
        "job_max_constraints",
        job(group(task(Affinities=WHERE, Resources={"Devices": DEVICES}))),
        3,
        "Constraints, Affinities, Spreads",
    ),
    (
        "job_max_services",
        job(group(task(Services=SERVICES), Services=SERVICES)),
        4,
        "Services: 4 services",
    ),
    (
        "job_max_checks",
        job(group(task(Services=SERVICES), Services=SERVICES)),
        4,
        "Checks of all services: 4 checks",
    ),
    (
        "job_max_ports",
        job(group(task(Resources={"Networks": NETWORK}), Networks=NETWORK)),
        4,
        "Ports of all networks: 4 ports",
    ),
    (
        "job_max_templates",
        job(group(task(Templates=[{}, {}]), task(Templates=[{}]))),
        3,
        "Templates of all tasks: 3 templates",
    ),
    (
        "job_max_kb",
        job(Meta={"a": "x" * 2048}),
        3,
        "Job: its definition takes 3 KB, but the limit is 2 KB",
    ),
]


@pytest.mark.parametrize(("setting", "given", "number", "text"), CASES)
def test_job_at_a_limit_is_accepted_and_one_beyond_is_refused(
    setting: str, given: Document, number: int, text: str
) -> None:
    sent = document(given)
    Budgets(**{**NONE, setting: number}).check(sent)
    with pytest.raises(OverBudget) as raised:
        Budgets(**{**NONE, setting: number - 1}).check(sent)
    (problem,) = raised.value.problems
    assert problem.startswith(text)
    assert problem.endswith(f"or raise {setting} in the daemon's configuration")


def test_each_limit_has_a_test_case() -> None:
    assert {case[0] for case in CASES} | CHECKED_ELSEWHERE == set(NONE)


def test_all_exceeded_limits_are_reported_together() -> None:
    given = document(job(group(task(), task()), group()))
    with pytest.raises(OverBudget) as raised:
        Budgets(**{**NONE, "job_max_groups": 1, "job_max_tasks": 2}).check(given)
    assert len(raised.value.problems) == 2
    assert str(raised.value).startswith("2 errors occurred:\n\t* TaskGroups: ")


@pytest.mark.parametrize("empty", [{}, {"TaskGroups": None}, {"Periodic": None, "Spreads": None}])
def test_empty_job_is_within_all_limits(empty: dict[str, Any]) -> None:
    Budgets().check(empty)


@pytest.mark.parametrize(
    ("setting", "given", "number"),
    [case[:3] for case in CASES if case[0] not in ("job_max_constraints", "job_max_kb")],
)
def test_stored_job_is_counted_like_the_submitted_one(
    setting: str, given: Document, number: int
) -> None:
    stored = complete(given)
    Budgets(**{**NONE, setting: number}).check_stored(stored)
    with pytest.raises(OverBudget):
        Budgets(**{**NONE, setting: number - 1}).check_stored(stored)


def test_the_defaults_are_those_of_the_settings() -> None:
    assert Budgets.of(Settings()) == Budgets()
    assert Budgets.of(Settings(job_max_groups=7)) == Budgets(job_max_groups=7)
