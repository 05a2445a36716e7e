"""Rules of the job itself: its names, its schedule or dispatch, and its groups together."""

from typing import Any

import pytest

from tests.unit.jobspec.build import errors, group, job, nested

ONLY_BATCH = 'can only be used with "batch" or "sysbatch" scheduler'


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"ID": ""}, ["Missing job ID", "Missing job name"]),
        ({"ID": "", "Name": "n"}, ["Missing job ID"]),
        ({"ID": "a b"}, ["Job ID contains a space"]),
        (
            {"ID": "a\0b"},
            ["Job ID contains a null character", "Job Name contains a null character"],
        ),
        ({"Name": "a b"}, []),
        ({"Name": "a\0b"}, ["Job Name contains a null character"]),
        ({"Type": ""}, ["Missing job type"]),
        (
            {"Type": "nope"},
            ['Invalid job type: "nope", must be one of service, batch, system, sysbatch'],
        ),
        ({"Datacenters": ["dc1", ""]}, ["Job datacenter must be non-empty string"]),
        ({"TaskGroups": []}, ["Missing job task groups"]),
        ({"UI": {"Description": "x" * 1000}}, []),
        (
            {"UI": {"Description": "\u00e9" * 501}},
            ["UI description must be under 1000 characters, currently 1002"],
        ),
        ({"Multiregion": {"Regions": [{"Name": "eu"}]}}, ["Multiregion jobs are unlicensed."]),
        ({"Multiregion": {}}, []),
    ],
)
def test_job_errors_are_found(given: dict[str, Any], texts: list[str]) -> None:
    found = errors(job(**given))
    assert [text for text in found if not text.startswith("Task group")] == texts


# ---- groups together ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "texts"),
    [
        ((50_000,), []),
        ((30_000, 20_000), []),
        ((50_001,), ["total count was greater than configured job_max_count: 50001 > 50000"]),
        (
            (30_000, 30_000),
            ["total count was greater than configured job_max_count: 60000 > 50000"],
        ),
    ],
)
def test_a_job_has_no_more_allocations_than_its_limit(
    counts: tuple[int, ...], texts: list[str]
) -> None:
    groups = [group(Name=f"g{number}", Count=count) for number, count in enumerate(counts)]
    assert errors(job(*groups)) == texts


@pytest.mark.parametrize(
    "meta",
    [
        {"steward_matrix": str({"a": [0] * 100, "b": [0] * 100}).replace("'", '"')},
        {"steward_for_each": str([0] * 10_000)},
    ],
)
def test_the_elements_of_lists_are_allocations_of_the_job(meta: dict[str, str]) -> None:
    groups = [group(Name=f"g{number}", Meta=meta) for number in range(6)]
    assert errors(job(*groups, Type="batch")) == [
        "total count was greater than configured job_max_count: 60000 > 50000"
    ]


def test_groups_need_different_names() -> None:
    named = [group(Name=name) for name in ("a", "b", "a", "a")]
    assert errors(job(*named)) == [
        "Job task group 3 redefines 'a' from group 1",
        "Job task group 4 redefines 'a' from group 1",
    ]


def test_group_without_a_name_is_named_by_its_position() -> None:
    assert errors(job(group(), group(Name=""))) == [
        "Job task group 2 missing name",
        f"Task group  validation failed: {nested('Missing task group name')}",
    ]


def test_shutdown_delay_is_not_negative() -> None:
    assert errors(job(group(ShutdownDelay=-1))) == ["ShutdownDelay must be a positive value"]
    assert errors(job(group(ShutdownDelay=0))) == []


@pytest.mark.parametrize(("kind", "allowed"), [("system", False), ("sysbatch", True)])
def test_a_system_job_runs_once_per_node(kind: str, allowed: bool) -> None:
    text = "Job task group web has count 2. Count cannot exceed 1 with system scheduler"
    assert errors(job(group(Count=2), Type=kind)) == ([] if allowed else [text])


# ---- launching ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "wrong"), [("batch", False), ("sysbatch", False), ("service", True), ("system", True)]
)
def test_only_batch_jobs_can_be_periodic_or_parameterized(kind: str, wrong: bool) -> None:
    periodic = errors(job(Type=kind, Periodic={"Specs": ["@daily"]}))
    parameterized = errors(job(Type=kind, ParameterizedJob={}))
    assert periodic == ([f"Periodic {ONLY_BATCH}"] if wrong else [])
    assert parameterized == ([f"Parameterized job {ONLY_BATCH}"] if wrong else [])


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"Spec": "@daily"}, []),
        ({"Spec": "@daily", "TimeZone": "Europe/Berlin"}, []),
        ({"Spec": "@daily", "TimeZone": ""}, []),
        ({"Specs": ["@daily", "0 12 * * *"]}, []),
        ({}, ["Must specify a spec"]),
        ({"Spec": "@daily", "Specs": ["@daily"]}, ["Only cron or crons may be used"]),
        (
            {"Spec": "@daily", "TimeZone": "Nowhere/Land"},
            ['Invalid time zone "Nowhere/Land": unknown time zone Nowhere/Land'],
        ),
        (
            {"Spec": "60 * * * *"},
            ["Invalid cron spec \"60 * * * *\": syntax error in minute field: '60'"],
        ),
        (
            {"Spec": "@daily", "SpecType": "test"},
            ['Unknown periodic specification type "test"'],
        ),
        (
            {"Specs": ["x", "@daily", "* *"]},
            [
                'Invalid cron spec "x": missing field(s)',
                'Invalid cron spec "* *": missing field(s)',
            ],
        ),
        ({"Enabled": False, "Spec": "x"}, []),
    ],
)
def test_periodic_schedule_must_be_unambiguous(given: dict[str, Any], texts: list[str]) -> None:
    found = errors(job(Type="batch", Periodic=given))
    assert found == ([nested(*texts)] if texts else [])


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({}, []),
        ({"Payload": "required"}, []),
        ({"Payload": "forbidden"}, []),
        ({"Payload": "maybe"}, ['Unknown payload requirement: "maybe"']),
        ({"MetaRequired": ["a"], "MetaOptional": ["b"]}, []),
        (
            {"MetaRequired": ["b", "a", "c", "b"], "MetaOptional": ["a", "b"]},
            [
                "Required and optional meta keys should be disjoint. "
                "Following keys exist in both: [b a]"
            ],
        ),
    ],
)
def test_payload_of_a_dispatch_must_be_unambiguous(given: dict[str, Any], texts: list[str]) -> None:
    found = errors(job(Type="batch", ParameterizedJob=given))
    assert found == ([nested(*texts)] if texts else [])
