"""References of a job to objects of the host or of other users."""

from typing import Any

import msgspec
import pytest

from daemon.jobs.register import RegistrationContext, reference_error
from storage.records.group import EphemeralDisk, TaskGroup, Update, Volume
from storage.records.job import Job
from storage.records.task import (
    Check,
    Device,
    Lifecycle,
    Network,
    Port,
    Resources,
    SecretsConfig,
    Service,
    Task,
)
from storage.store import Store
from tests import samples


def around(**fields: object) -> RegistrationContext:
    return RegistrationContext(region="global", node_pools={"default"}, **fields)


def mounting(*, read_only: bool) -> Job:
    volumes = {"v": Volume(name="v", type="host", source="data", read_only=read_only)}
    return samples.job("web", samples.group("web", volumes=volumes))


def faults(store: Store, job: Job, surroundings: RegistrationContext) -> list[str]:
    return store.read(lambda db: reference_error(db, job, surroundings))


async def test_host_volume_needs_a_policy_for_its_access_mode(store: Store) -> None:
    reading = around(may_mount=lambda source, read_only: source == "data" and read_only)
    assert faults(store, mounting(read_only=True), reading) == []
    (fault,) = faults(store, mounting(read_only=False), reading)
    assert (
        fault
        == 'the host volume "data" cannot be mounted in this mode: a host_volume policy must allow it'
    )


async def test_task_token_needs_a_submitter_with_permission_to_create_it(store: Store) -> None:
    asking = samples.task("main", secrets_config=SecretsConfig(role="web"))
    job = samples.job("web", samples.group("web", asking))
    refusing = around(secrets=lambda _, block: f"no {block.role}")
    assert faults(store, job, refusing) == ['task "main" cannot have a token: no web']
    assert faults(store, job, around(secrets=lambda _, block: "")) == []


async def test_command_must_be_configured(store: Store) -> None:
    job = samples.job("web", meta={"steward_notify_command": "mail"})
    said = (
        'Meta of job: "steward_notify_command" is "mail", must be one of notify_commands in the '
        "daemon's configuration: "
    )
    assert faults(store, job, around()) == [f"{said}none exists"]
    assert faults(store, job, around(commands={"page", "chat"})) == [f"{said}chat, page"]
    assert faults(store, job, around(commands={"mail"})) == []


async def test_unknown_receiver_is_named_with_existing_ones(
    store: Store,
) -> None:
    job = samples.job("web", meta={"steward_notify_to": "night,chat"})
    said = (
        'Meta of job: "steward_notify_to" is "night", must be one of notify_receivers in the '
        "daemon's configuration: chat, mail"
    )
    assert faults(store, job, around(receivers={"mail", "chat"})) == [said]
    assert faults(store, job, around(receivers={"night", "chat"})) == []


def in_cluster(*groups: TaskGroup, **fields: Any) -> Job:
    return samples.job("web", *groups, **{"type": "batch", "node_pool": "hpc", **fields})


def group(*tasks: Task, **fields: Any) -> TaskGroup:
    return samples.group("web", *tasks, **fields)


HTTP = Network(dynamic_ports=[Port(label="http")])
CHECKED = Service(name="web", checks=[Check(name="alive")])


@pytest.mark.parametrize(
    ("job", "what", "fix"),
    [
        (in_cluster(type="system"), 'type = "system"', "make it a batch job"),
        (
            in_cluster(group(samples.task("a"), samples.task("b"))),
            "2 tasks (a, b)",
            "put each task into a separate group",
        ),
        (in_cluster(group(networks=[HTTP])), "network with ports (http)", "leave the ports out"),
        (
            in_cluster(group(networks=[Network(mode="bridge")])),
            'network.mode = "bridge"',
            'write mode = "host"',
        ),
        (
            in_cluster(group(samples.task(resources=Resources(networks=[HTTP])))),
            'task "main": resources.network with ports (http)',
            "leave the ports out",
        ),
        (
            in_cluster(group(services=[CHECKED])),
            'service "web" with checks',
            "leave the checks out",
        ),
        (
            in_cluster(group(samples.task(services=[CHECKED]))),
            'task "main": service "web" with checks',
            "leave the checks out",
        ),
        (
            in_cluster(group(services=[Service(name="web", connect={})])),
            'service "web" with connect',
            "leave it out",
        ),
        (in_cluster(group(update=Update(canary=1))), "update.canary = 1", "leave it out"),
        (
            in_cluster(group(ephemeral_disk=EphemeralDisk(sticky=True))),
            "ephemeral_disk.sticky = true",
            "leave it out",
        ),
        (
            in_cluster(group(ephemeral_disk=EphemeralDisk(migrate=True))),
            "ephemeral_disk.migrate = true",
            "leave it out",
        ),
        (
            in_cluster(group(volumes={"data": Volume(name="data", type="csi", source="x")})),
            'volume "data" (type = "csi")',
            "leave it out",
        ),
        (
            in_cluster(group(samples.task(lifecycle=Lifecycle(hook="prestart")))),
            'task "main": lifecycle.hook = "prestart"',
            "leave it out",
        ),
        (
            in_cluster(group(samples.task(resources=Resources(devices=[Device(name="gpu")])))),
            'task "main": resources.device (gpu)',
            "use a constraint on a feature",
        ),
        (
            in_cluster(group(samples.task(driver="exec"))),
            'task "main": driver = "exec"',
            "write one of raw_exec, slurm",
        ),
    ],
)
async def test_job_that_no_cluster_can_run_is_refused_with_a_fix(
    store: Store, job: Job, what: str, fix: str
) -> None:
    pools = {"default", "hpc"}
    named = msgspec.structs.replace(around(), node_pools=pools)
    said = [fault for fault in faults(store, job, named) if "volume" not in fault]
    assert said == []
    (fault,) = faults(
        store,
        job,
        msgspec.structs.replace(
            named, clusters={"hpc": ("slurm", "raw_exec")}, may_mount=lambda *_: True
        ),
    )
    assert fault.startswith(f'group "web": {what} cannot be in node pool "hpc", which is a cluster')
    assert f"cluster: {fix}" in fault
    assert fault.endswith(", or choose another node_pool")


def test_step_with_outputs_and_a_list_is_accepted_for_a_cluster() -> None:
    meta = {"steward_outputs": "x", "steward_matrix": '{"x": [1]}'}
    found = around(clusters={"hpc": ("slurm",)}).findings(
        in_cluster(group(samples.task(), meta=meta))
    )
    assert found == around().findings(in_cluster(group(samples.task(), meta=meta)))
    assert not any("Slurm" in text for text in found.warnings)


async def test_plain_task_is_accepted_for_a_cluster(store: Store) -> None:
    named = msgspec.structs.replace(
        around(), node_pools={"hpc"}, clusters={"hpc": ("slurm", "raw_exec")}
    )
    job = in_cluster(group(samples.task(driver="slurm")), group(services=[Service(name="web")]))
    assert faults(store, job, named) == []


@pytest.mark.parametrize(
    ("config", "opened"),
    [
        ({}, []),
        ({"seccomp": "default", "user_namespaces": False}, []),
        ({"seccomp": "off"}, ["seccomp"]),
        ({"seccomp": "${meta.filter}"}, ["seccomp"]),  # resolved when the task starts
        ({"seccomp": ["off"]}, ["seccomp"]),
        ({"user_namespaces": True}, ["user_namespaces"]),
        ({"user_namespaces": "${meta.it}", "seccomp": "off"}, ["seccomp", "user_namespaces"]),
    ],
)
async def test_weaker_sandbox_requires_a_separate_capability(
    store: Store, config: dict[str, object], opened: list[str]
) -> None:
    job = samples.job(
        "web", samples.group("web", samples.task("main", driver="exec", config=config))
    )
    assert faults(store, job, around()) == [
        f'task "main": {name} in its config needs the capability "exec-unfiltered" in namespace '
        '"default": leave it out, or ask for that capability'
        for name in opened
    ]
    assert faults(store, job, around(may_open=lambda namespace: namespace == "default")) == []
