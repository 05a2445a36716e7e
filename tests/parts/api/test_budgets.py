"""A job beyond a limit of the settings is refused by every route, before it is completed."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from daemon.acl.check import KNOWN
from daemon.api import dispatch, job_versions, jobs, plan, scaling
from daemon.config.settings import Settings
from daemon.jobs import register
from daemon.jobspec.budgets import Budgets, OverBudget
from daemon.web.request import Request
from storage.errors import Invalid, Refused
from storage.queries import jobs as stored_jobs
from storage.records.codec import Document
from storage.store import Store
from tests.parts.api.requests import caller, parts_of, request

TASK = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
GROUPS = [{"Name": name, "Count": 2, "Tasks": [TASK]} for name in ("a", "b")]
JOB: Document = {"ID": "j", "Type": "batch", "TaskGroups": GROUPS}
PARENT: Document = {**JOB, "ParameterizedJob": {}}
NARROW = Settings(job_max_groups=1)
TEXT = "TaskGroups: 2 groups, but the limit is 1: split the job, or raise job_max_groups in the daemon's configuration"


def asked(store: Store, config: Settings = Settings(), body: object = None) -> Request:  # noqa: B008  # frozen
    made = request(store, KNOWN, caller(), body=body, job_id="j")
    return msgspec.structs.replace(made, parts=parts_of(store, config))


async def test_a_registration_is_refused_before_the_job_is_completed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def costly(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(register, "canonicalize", costly)
    for handler in (jobs.register, jobs.update, plan.plan):
        with pytest.raises(OverBudget) as raised:
            await handler(asked(store, NARROW, {"Job": JOB}))
        assert raised.value.problems == (TEXT,)


async def test_validate_lists_oversized_fields(store: Store) -> None:
    reply = await jobs.validate(asked(store, NARROW, {"Job": JOB}))
    found: Any = reply.body
    assert found.validation_errors == [TEXT]
    assert found.error == f"1 error occurred:\n\t* {TEXT}\n\n"


async def test_oversized_new_version_is_refused_and_the_old_version_keeps_running(
    store: Store,
) -> None:
    await jobs.register(asked(store, body={"Job": PARENT}))
    await jobs.register(asked(store, body={"Job": {**PARENT, "Priority": 60}}))
    with pytest.raises(OverBudget, match="job_max_groups"):
        await dispatch.dispatch(asked(store, NARROW, {}))
    with pytest.raises(OverBudget, match="job_max_groups"):
        await job_versions.revert(asked(store, NARROW, {"JobID": "j", "JobVersion": 0}))
    found = store.read(lambda db: stored_jobs.current(db, "default", "j"))
    assert found is not None
    assert found.version == 1
    await dispatch.dispatch(asked(store, body={}))


async def test_limits_of_job_counts_have_settings(store: Store) -> None:
    few = Settings(job_max_count=3)
    reply = await jobs.validate(asked(store, few, {"Job": JOB}))
    found: Any = reply.body
    (text,) = found.validation_errors
    assert text == "total count was greater than configured job_max_count: 4 > 3"
    await jobs.register(asked(store, body={"Job": PARENT}))
    scale = {"Target": {"Group": "a"}, "Count": 2, "Message": "m"}
    with pytest.raises(Refused, match="job_max_count: 4 > 3"):
        await scaling.scale(asked(store, few, scale))
    with pytest.raises(Refused, match="job_max_count: 4 > 3"):
        await dispatch.dispatch(asked(store, few, {}))


# ---- every limit, by every route -----------------------------------------------------------------

PORTS = [{"Label": f"p{number}", "To": 80} for number in range(9)]


def check_of(number: int) -> Document:
    fields = {"Name": f"c{number}", "Type": "tcp", "Interval": 10**10, "Timeout": 10**9}
    return {**fields, "PortLabel": "p0"}


def with_services(number: int, checks: int) -> Document:
    services = [
        {
            "Name": f"s{each}",
            "Provider": "nomad",
            "PortLabel": "p0",
            "Checks": [check_of(number) for number in range(checks)],
        }
        for each in range(number)
    ]
    group = {**GROUPS[0], "Networks": [{"DynamicPorts": PORTS[:1]}], "Services": services}
    return {**JOB, "TaskGroups": [group]}


def with_templates(number: int) -> Document:
    templates = [{"EmbeddedTmpl": "x", "DestPath": f"local/{number}"} for number in range(number)]
    return {**JOB, "TaskGroups": [{**GROUPS[0], "Tasks": [{**TASK, "Templates": templates}]}]}


def with_conditions(number: int) -> Document:
    where = {"LTarget": "${meta.a}", "Operand": "is_not_set"}
    return {
        **JOB,
        "TaskGroups": GROUPS[:1],
        "Constraints": [where] * (number - 1),
        "Datacenters": ["*"],
    }


# For each setting, a function that returns a job with the given number of the limited elements.
MADE: dict[str, Callable[[int], Document]] = {
    "job_max_count": lambda most: {**JOB, "TaskGroups": [{**GROUPS[0], "Count": most}]},
    "job_max_groups": lambda most: {
        **JOB,
        "TaskGroups": [{**GROUPS[0], "Name": f"g{number}"} for number in range(most)],
    },
    "job_max_tasks": lambda most: {
        **JOB,
        "TaskGroups": [
            {**GROUPS[0], "Tasks": [{**TASK, "Name": f"t{number}"} for number in range(most)]}
        ],
    },
    "job_max_specs": lambda most: {
        **JOB,
        "Periodic": {"SpecType": "cron", "Specs": [f"{number} * * * *" for number in range(most)]},
    },
    "job_max_constraints": with_conditions,
    "job_max_services": lambda most: with_services(most, 1),
    "job_max_checks": lambda most: with_services(1, most),
    "job_max_ports": lambda most: {
        **JOB,
        "TaskGroups": [{**GROUPS[0], "Networks": [{"DynamicPorts": PORTS[:most]}]}],
    },
    "job_max_templates": with_templates,
    "job_max_kb": lambda most: {**JOB, "Meta": {"a": "x" * (most * 1024 - 600)}},
}
OF_VERSIONS = {"job_max_versions", "job_max_versions_mb"}
NEW = {"validate", "plan", "register"}  # routes that accept a document
# Routes that launch children, each with the fields of the parent.
LAUNCHES = {"dispatch": {"ParameterizedJob": {}}, "force": {"Periodic": {"Spec": "0 0 1 1 *"}}}
OLD = {"revert", "scale", *LAUNCHES}  # routes that use a stored job
CASES = sorted(
    (setting, way)
    for setting in MADE
    for way in NEW | OLD
    if not (setting == "job_max_specs" and way in LAUNCHES)
)


def limited(setting: str, most: int) -> Settings:
    return msgspec.structs.replace(Settings(), **{setting: most})


async def comes_in(store: Store, way: str, config: Settings, document: Document) -> str:
    """Submit a job by one route; return the reason for its refusal, or an empty string."""
    try:
        match way:
            case "validate":
                reply = await jobs.validate(asked(store, config, {"Job": document}))
                found: Any = reply.body
                return str(found.error)
            case "plan":
                await plan.plan(asked(store, config, {"Job": document}))
            case "register":
                await jobs.register(asked(store, config, {"Job": document}))
            case "revert":
                await job_versions.revert(asked(store, config, {"JobID": "j", "JobVersion": 0}))
            case "scale":
                group = document["TaskGroups"][0]
                target = {"Target": {"Group": group["Name"]}, "Count": group["Count"]}
                await scaling.scale(asked(store, config, {**target, "Message": "m"}))
            case "dispatch":
                await dispatch.dispatch(asked(store, config, {}))
            case "force":
                await dispatch.force_periodic(asked(store, config))
    except (Invalid, Refused) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("setting", "way"), CASES)
@pytest.mark.parametrize("most", [2, 5])
async def test_job_beyond_a_limit_is_refused_by_every_route_and_a_job_at_the_limit_is_accepted(
    store: Store, setting: str, way: str, most: int
) -> None:
    document = {**MADE[setting](most), **LAUNCHES.get(way, {})}
    if way in OLD:
        assert await comes_in(store, "register", Settings(), document) == ""
    if way == "revert":
        other = {**document, "Priority": 60}
        assert await comes_in(store, "register", Settings(), other) == ""
    told = await comes_in(store, way, limited(setting, most - 1), document)
    assert setting in told
    assert str(most) in told
    assert str(most - 1) in told
    assert await comes_in(store, way, limited(setting, most), document) == ""


def test_every_limit_is_tested() -> None:
    assert MADE.keys() | OF_VERSIONS == set(Budgets.__struct_fields__)


@pytest.mark.parametrize("way", sorted(NEW | OLD - LAUNCHES.keys()))
@pytest.mark.parametrize("setting", sorted(OF_VERSIONS))
async def test_job_at_the_version_limit_gets_no_new_version_and_loses_none(
    store: Store, setting: str, way: str
) -> None:
    large = {"Meta": {"a": "x" * 600_000}} if setting == "job_max_versions_mb" else {}
    for priority in (50, 60):
        document = {**JOB, **large, "Priority": priority}
        assert await comes_in(store, "register", Settings(), document) == ""
    most = 1 if setting == "job_max_versions_mb" else 2
    full, roomy = limited(setting, most), limited(setting, most + 1)
    changed = {**document, "Priority": 70}
    told = await comes_in(store, way, full, changed)
    assert f"the limit is {most}" in told
    assert setting in told
    if way in NEW:  # a plan without a new version is not rejected
        assert await comes_in(store, way, full, document) == ""
    assert store.read(lambda db: stored_jobs.size_of_versions(db, "default", "j"))[0] == 2
    assert await comes_in(store, way, roomy, changed) == ""


async def test_job_at_the_version_limit_can_be_stopped(store: Store) -> None:
    await jobs.register(asked(store, body={"Job": JOB}))
    await jobs.deregister_job(asked(store, Settings(job_max_versions=1)))
    found = store.read(lambda db: stored_jobs.current(db, "default", "j"))
    assert found is not None
    assert found.stop


async def test_size_of_all_versions_is_the_size_of_their_documents(store: Store) -> None:
    for priority in range(50, 55):
        meta = {"a": "ü" * priority}
        await jobs.register(asked(store, body={"Job": {**JOB, "Priority": priority, "Meta": meta}}))
    held = "SELECT sum(length(CAST(document AS BLOB))) AS octets FROM job_versions"
    octets = store.read(lambda db: db.all(held))[0]["octets"]
    assert store.read(lambda db: stored_jobs.size_of_versions(db, "default", "j")) == (5, octets)


async def test_job_with_many_small_groups_at_the_size_limit_is_scaled(
    store: Store,
) -> None:
    groups = [{"Name": f"g{number}", "Tasks": [TASK], "Count": 0} for number in range(90)]
    document: Document = {"ID": "j", "Type": "batch", "TaskGroups": groups, "ParameterizedJob": {}}
    config = Settings(job_max_kb=len(msgspec.json.encode(document)) // 1024 + 1)
    assert await comes_in(store, "register", config, document) == ""
    for way in ("scale", "dispatch"):
        assert await comes_in(store, way, config, document) == ""
