"""Parsing of a real cluster's partitions: hosts, a drained host, and missing partitions."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.runner.drivers.slurm.commands import SlurmCommands
from daemon.runner.drivers.slurm.partition import PartitionNotFound, query_partition
from tests import launchers
from tests.service.slurm.cluster import PATH, Cluster


@pytest.fixture
async def tools(cluster: Cluster, tmp_path: Path) -> AsyncIterator[SlurmCommands]:
    config = str(cluster.config)
    async with launchers.open_for_programs(tmp_path / "tasks/alloc", PATH, config) as launcher:
        yield SlurmCommands(path=PATH, launcher=launcher, config=config)


async def test_partition_is_shown_with_its_hosts_and_their_reasons(
    cluster: Cluster, tools: SlurmCommands
) -> None:
    cluster.run(
        *("scontrol", "update", "nodename=node2", "state=drain", "reason=the | disk is full")
    )
    try:
        partition = await query_partition(tools, "main")
    finally:
        cluster.run("scontrol", "update", "nodename=node2", "state=resume")
    assert [(host.name, host.cores, host.memory_mb) for host in partition.hosts] == [
        ("node1", 16, 8000),
        ("node2", 16, 8000),
    ]
    first, second = partition.hosts
    assert (first.state, first.description) == ("up", "takes jobs")
    assert second.description == "accepts no new jobs: the | disk is full"
    assert (partition.is_open, partition.max_time) == (True, "UNLIMITED")
    assert partition.version.count(".") >= 1


async def test_missing_partition_is_reported(tools: SlurmCommands) -> None:
    with pytest.raises(PartitionNotFound, match="no partition 'nowhere'"):
        await query_partition(tools, "nowhere")
