"""Which changes of a job a running allocation survives (recorded: plan)."""

from typing import Any

import msgspec
import pytest

from daemon.scheduler.updates import requires_replacement
from storage.records.constraints import Constraint
from storage.records.group import EphemeralDisk, TaskGroup, Update, Volume
from storage.records.job import Job, JobType
from storage.records.task import (
    Artifact,
    Check,
    Consul,
    Device,
    DispatchPayload,
    Identity,
    Lifecycle,
    LogConfig,
    Network,
    Port,
    Resources,
    RestartPolicy,
    Secret,
    SecretsConfig,
    Service,
    Task,
    Template,
    VolumeMount,
)
from tests.samples import group, job, task

NET = Network(mode="host", dynamic_ports=[Port(label="http", value=0)])
CONNECTED = Service(name="api", port_label="http", connect={"Native": True})


def of_task(**fields: Any) -> Job:
    return job("web", group("web", task(**fields)))


def of_group(**fields: Any) -> Job:
    return job("web", group("web", **fields))


def of_resources(**fields: Any) -> Job:
    return of_task(resources=Resources(**{"cpu": 20, "memory_mb": 20, **fields}))


@pytest.mark.parametrize(
    "changed",
    [
        job(meta={"a": "1"}),
        of_group(meta={"a": "1"}),
        of_task(meta={"a": "1"}),
        of_task(driver="exec"),
        of_task(user="nobody"),
        of_task(config={"command": "/bin/false"}),
        of_task(env={"A": "b"}),
        of_task(artifacts=[Artifact(getter_source="x")]),
        of_task(templates=[Template(embedded_tmpl="x")]),
        of_task(secrets_config=SecretsConfig(role="r")),
        of_task(secrets=[Secret(name="s")]),
        of_task(volume_mounts=[VolumeMount(volume="v", destination="/v")]),
        of_task(identity=Identity(name="default", file=True)),
        of_task(identities=[Identity(name="other")]),
        of_task(log_config=LogConfig(disabled=True)),
        of_task(restart_policy=RestartPolicy(render_templates=True)),
        of_task(consul=Consul(namespace="n")),
        of_resources(cpu=30),
        of_resources(memory_mb=25),
        of_resources(memory_max_mb=99),
        of_resources(cores=1),
        of_resources(secrets_mb=1),
        of_resources(devices=[Device(name="gpu")]),
        of_resources(networks=[NET]),
        of_group(ephemeral_disk=EphemeralDisk(size_mb=500)),
        of_group(networks=[NET]),
        of_group(volumes={"v": Volume(source="v")}),
        of_group(restart_policy=RestartPolicy(render_templates=True)),
        of_group(consul=Consul(namespace="n")),
        job("web", group("web", task("main"), task("second"))),
        job("web", group("web", task("other"))),
        job("web", group("other")),
    ],
)
def test_change_of_task_inputs_replaces_the_task(changed: Job) -> None:
    assert requires_replacement(job(), changed, "web")
    assert requires_replacement(changed, job(), "web")


@pytest.mark.parametrize(
    "changed",
    [
        job(),
        job(priority=70),
        job(type=JobType.BATCH),
        job(datacenters=["dc9"]),
        job(constraints=[Constraint(operand="is_set")]),
        of_group(count=9),
        of_group(update=Update(max_parallel=3)),
        of_group(restart_policy=RestartPolicy(attempts=9)),
        of_group(services=[Service(name="api", checks=[Check(type="http")])]),
        of_group(shutdown_delay=5),
        of_group(max_run_duration=5),
        of_group(meta={}, networks=[], volumes={}),
        of_task(kill_timeout=9),
        of_task(kill_signal="SIGTERM"),
        of_task(leader=True),
        of_task(lifecycle=Lifecycle(hook="prestart")),
        of_task(services=[Service(name="api")]),
        of_task(log_config=LogConfig(max_files=3)),
        of_task(restart_policy=RestartPolicy(attempts=9)),
        of_task(constraints=[Constraint(operand="is_set")]),
        of_task(dispatch_payload=DispatchPayload(file="x")),
        of_task(env={}, templates=[], artifacts=[], meta={}, identities=[]),
        of_task(consul=Consul(cluster="other")),
        of_resources(disk_mb=5),
    ],
)
def test_other_changes_are_made_in_place(changed: Job) -> None:
    assert not requires_replacement(job(), changed, "web")
    assert not requires_replacement(changed, job(), "web")


def with_port(**fields: Any) -> Job:
    return of_group(networks=[Network(mode="host", dynamic_ports=[Port(label="http", **fields)])])


def with_static(value: int) -> Job:
    return of_group(networks=[Network(reserved_ports=[Port(label="http", value=value)])])


@pytest.mark.parametrize(
    ("before", "after", "replaces"),
    [
        (with_port(value=0), with_port(value=23456), False),
        (with_port(to=0), with_port(to=80), True),
        (with_port(), with_port(host_network="lan"), True),
        (with_static(80), with_static(81), True),
        (with_static(80), with_static(80), False),
    ],
)
def test_every_port_change_except_a_dynamic_number_replaces(
    before: Job, after: Job, replaces: bool
) -> None:
    assert requires_replacement(before, after, "web") is replaces


@pytest.mark.parametrize(
    ("change", "replaces"),
    [
        ({"connect": {"Native": False}}, True),
        ({"connect": None}, True),
        ({"port_label": "other"}, True),
        ({"tags": ["new"]}, False),
        ({"name": "other"}, False),
    ],
)
def test_mesh_service_is_part_of_the_group(change: dict[str, Any], replaces: bool) -> None:
    after = msgspec.structs.replace(CONNECTED, **change)
    before = of_group(services=[CONNECTED])
    assert requires_replacement(before, of_group(services=[after]), "web") is replaces


def test_meta_is_compared_as_merged_for_the_task() -> None:
    def with_meta(of_job: dict[str, str], *tasks: Task) -> Job:
        return job("web", group("web", *tasks), meta=of_job)

    hidden = task(meta={"a": "inner"})
    assert not requires_replacement(
        with_meta({"a": "1"}, hidden), with_meta({"a": "2"}, hidden), "web"
    )


def test_other_groups_are_ignored() -> None:
    def with_groups(*groups: TaskGroup) -> Job:
        return job("web", group("web"), *groups)

    assert not requires_replacement(with_groups(), with_groups(group("db")), "web")
