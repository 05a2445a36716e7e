"""Unsatisfiable requirements are reported before any placement, with similar names."""

from typing import Any

import pytest

from daemon.evals.placement_precheck import PlacementRemarks, check_placement
from daemon.runner.drivers.examine import look
from storage.records.constraints import Constraint
from storage.records.group import Volume
from storage.records.job import Job
from storage.records.node import DriverInfo
from storage.records.task import Resources
from storage.store import Store
from tests.parts.evals.cluster import Cluster
from tests.samples import group, job, task
from tests.unit.scheduler.world import small

DRIVERS = {
    "raw_exec": DriverInfo(),
    "exec": DriverInfo(),
    "docker": DriverInfo(detected=False, healthy=False, health_description="there is no socket"),
}
TRUE = {"command": "/bin/true"}


@pytest.fixture
async def machine(cluster: Cluster) -> Cluster:
    """A cluster with a second node: it has a driver that does not work, an attribute and a volume."""
    await cluster.join(
        small(
            drivers=DRIVERS,
            attributes={"cpu.arch": "amd64", "kernel.name": "linux"},
            host_volumes={"data": {"Name": "data"}},
            name="vm",
        )
    )
    return cluster


def found(cluster: Cluster, given: Job) -> PlacementRemarks:
    return cluster.store.read(lambda db: check_placement(db, given, look))


def of_task(**fields: Any) -> Job:
    return job("web", group("g", task("t", **{"driver": "raw_exec", "config": TRUE, **fields})))


def rule(target: str, value: str) -> Job:
    constraint = Constraint(l_target=target, operand="=", r_target=value)
    return job("web", group("g", task(driver="raw_exec", config=TRUE)), constraints=[constraint])


async def test_driver_is_not_checked_without_a_node(store: Store) -> None:
    assert found(Cluster(store), of_task(driver="dokcer")).errors == []


async def test_feasible_job_gets_no_warning(machine: Cluster) -> None:
    assert found(machine, of_task()) == PlacementRemarks([], [])


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (
            {"driver": "dokcer"},
            'driver "dokcer" is unknown (did you mean "docker"?); there are exec, raw_exec',
        ),
        (
            {"config": {**TRUE, "arg": ["-l"]}},
            'config has the unknown key "arg" (did you mean "args"?)',
        ),
        (
            {"config": {**TRUE, "args": "-l"}},
            'config.args must be a list of string, but it is the string "-l"',
        ),
        ({"config": {}}, 'config has no "command": add it as a string'),
        (
            {"driver": "docker", "config": {"image": ["x"]}},
            'config.image must be a string, but it is the list ["x"]',
        ),
    ],
)
async def test_certain_failure_is_an_error(
    machine: Cluster, fields: dict[str, Any], error: str
) -> None:
    assert found(machine, of_task(**fields)).errors == [f'group "g", task "t": {error}']


async def test_variable_is_accepted_instead_of_a_number_or_a_flag(machine: Cluster) -> None:
    block = {"image": "x", "force_pull": "${meta.pull}"}
    assert found(machine, of_task(driver="docker", config=block)).errors == []


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        (
            of_task(driver="docker", config={"image": "x"}),
            'group "g", task "t": driver "docker" does not work on this host: there is no socket; install podman '
            "and start its socket: systemctl enable --now podman.socket; there are exec, raw_exec",
        ),
        (
            of_task(config={"command": "/usr/bin/nonesuch"}),
            'group "g", task "t": this host has no program /usr/bin/nonesuch: install it before the task starts',
        ),
        (
            of_task(user="nosuch"),
            'group "g", task "t": this host has no user "nosuch": create the user or name another one',
        ),
        (
            rule("${attr.cpu.archh}", "amd64"),
            'no node has the attribute "cpu.archh" (did you mean "cpu.arch"?)',
        ),
        (
            rule("${attr.kernel.name}", "windows"),
            "no node meets ${attr.kernel.name} = windows: node-1 has linux, vm has linux",
        ),
        (
            job(
                "web", group("g", task(driver="raw_exec", config=TRUE)), datacenters=["dc2", "dc3"]
            ),
            'no node is in datacenter dc2, dc3: the nodes are in dc1 (did you mean "dc1"?)',
        ),
        (
            job(
                "web",
                group(
                    "g",
                    task(driver="raw_exec", config=TRUE),
                    volumes={"v": Volume(name="v", type="host", source="dat")},
                ),
            ),
            'group "g": no node has the host volume "dat" (did you mean "data"?)',
        ),
    ],
)
async def test_failure_depending_on_the_current_state_is_a_warning(
    machine: Cluster, given: Job, warning: str
) -> None:
    assert found(machine, given) == PlacementRemarks([], [warning])


async def test_job_larger_than_every_node_is_reported_with_both_sizes(machine: Cluster) -> None:
    large = Resources(cpu=20, memory_mb=999_999)
    (warning,) = found(machine, of_task(resources=large)).warnings
    assert warning.startswith('group "g": it asks for 999999 MiB of memory, and the largest node')
