"""Checks of the connection to a cluster, and their error messages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.runner.core.launcher_policy import PROGRAMS
from daemon.runner.drivers.slurm.commands import SlurmCommands
from daemon.runner.drivers.slurm.pool_check import _limits, check_pool, explain_error
from storage.records.pool_check import PoolFinding
from tests import launchers
from tests.fakes.slurm.world import FakeSlurm, fake_slurm

URL = "https://steward.example:4690"
STEPS = ["programs", "version", "partition", "hosts", "limits", "address"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeSlurm]:
    with fake_slurm(tmp_path / "slurm") as found:
        yield found


async def found(world: FakeSlurm, partition: str = "main", url: str = URL) -> list[PoolFinding]:
    path = str(world.bin)
    async with launchers.open_for_programs(world.directory / "tasks/alloc", path) as launcher:
        return await check_pool(SlurmCommands(path=path, launcher=launcher), partition, url)


async def test_healthy_cluster_passes_the_check(world: FakeSlurm) -> None:
    findings = await found(world)
    assert [(finding.step, finding.good) for finding in findings] == [
        (step, True) for step in STEPS
    ]
    said = {finding.step: finding.message for finding in findings}
    assert said["version"] == "slurm-wlm 22.05.8"
    assert said["partition"] == "main is up, with 2 hosts and 32 cores"
    assert said["hosts"] == "2 of 2 accept jobs, the largest with 16 cores and 8000 MB"
    assert said["limits"] == (
        "the time limit of jobs is unlimited, and the cluster holds at most 10000 jobs; "
        "an ended job is remembered for 300 sec"
    )
    assert said["address"] == f"hosts report to {URL}"


async def test_address_of_this_host_is_reported(world: FakeSlurm) -> None:
    findings = await found(world, url="http://127.0.0.1:4690")
    assert findings[-1].message.endswith(
        "only this host can reach it, not other hosts of the cluster"
    )


async def test_missing_programs_are_named(world: FakeSlurm) -> None:
    (world.bin / "srun").unlink()
    (one,) = await found(world)
    assert (one.step, one.good) == ("programs", False)
    assert one.message.startswith(
        f"srun cannot be found in {world.bin}, the daemon's search path: install"
    )


async def test_unreachable_controller_gets_no_further_queries(world: FakeSlurm) -> None:
    world.controller_away()
    findings = await found(world)
    assert [finding.step for finding in findings] == STEPS[:3]
    assert not findings[-1].good
    assert findings[-1].message.startswith(
        "the controller does not answer: check whether slurmctld"
    )


async def test_missing_partition_is_reported(world: FakeSlurm) -> None:
    findings = await found(world, "nope")
    assert (findings[-1].step, findings[-1].good) == ("partition", False)
    assert findings[-1].message == (
        "the cluster has no such partition: compare with the output of sinfo -s "
        "(Partition nope not found)"
    )


async def test_unavailable_hosts_are_reported_with_their_reasons(world: FakeSlurm) -> None:
    world.drain("node1", "Duplicate jobid")
    said = (await found(world))[3]
    assert said.good
    assert said.message == (
        "1 of 2 accept jobs, the largest with 16 cores and 8000 MB; "
        "node1 is drained (Duplicate jobid)"
    )
    world.node_down("node2")
    said = (await found(world))[3]
    assert not said.good
    assert said.message == (
        "no host accepts jobs: node1 is drained (Duplicate jobid); node2 is down* (Not responding)"
    )


@pytest.mark.parametrize(
    ("said", "begins", "ends"),
    [
        (
            'sinfo: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2"\n'
            "slurm_load_partitions: Protocol authentication error",
            "munge does not answer on the daemon's host",
            "(slurm_load_partitions: Protocol authentication error)",
        ),
        (
            "fatal: Could not establish a configuration source",
            "the programs find no configuration of the cluster",
            "(fatal: Could not establish a configuration source)",
        ),
        ("something else", "something else", "something else"),
    ],
)
def test_output_of_a_program_is_explained(said: str, begins: str, ends: str) -> None:
    assert explain_error(said).startswith(begins)
    assert explain_error(said).endswith(ends)


def test_fake_has_all_programs(world: FakeSlurm) -> None:
    assert {path.name for path in world.bin.iterdir()} == set(PROGRAMS)


@pytest.mark.parametrize(
    ("hidden", "is_told"), [("none", False), ("accounts,jobs", True), ("usage", False)]
)
def test_a_cluster_that_hides_jobs_is_reported(hidden: str, is_told: bool) -> None:
    assert ("hides jobs" in _limits({}, f"PrivateData             = {hidden}\n")) is is_told
