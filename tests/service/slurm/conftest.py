"""The real cluster, once for each module, and a daemon that has it as its pool `hpc`."""

import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.service.daemon import Steward, open_steward
from tests.service.slurm.cluster import Cluster, free_ports, missing, open_cluster
from tests.service.slurm.jobs import POOL, Task


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Run a cluster for the tests of a module, which leave it unchanged."""
    if lacking := missing():
        pytest.skip(f"a cluster needs {', '.join(lacking)}")
    with open_cluster() as running:
        yield running


def with_pool(directory: Path, cluster_config: str = "") -> str:
    """Return the path of settings with the pool `hpc`; hosts reach the daemon at a fixed port."""
    (port,) = free_ports(random.Random(os.urandom(8)), 1)
    hosts = directory / "hosts"
    hosts.mkdir(mode=0o755)
    lines = [
        f"wrapper_port = {port}",
        f"[pools.{POOL}]",
        'engine = "slurm"',
        'partition = "main"',
        f'directory = "{hosts}"',
        f'cluster_config = "{cluster_config}"',
    ]
    settings = directory / "steward.toml"
    settings.write_text("\n".join(lines))
    return str(settings)


@pytest.fixture
async def steward(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a development daemon with the cluster as a pool; at the end, no job of the daemon is left
    in the cluster.
    """
    settings = with_pool(tmp_path, str(cluster.config))
    async with open_steward(tmp_path, "--dev", "--config", settings) as running:
        await running.until(f"/v1/node/pool/{POOL}/nodes", is_ready)
        yield running
    cluster.run("scancel", "--me")


def is_ready(nodes: list[dict[str, object]]) -> bool:
    """Return whether the node of the pool is eligible."""
    return [node["Status"] for node in nodes] == ["ready"]


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    """Yield a task that ends on request, or with the test."""
    found = Task(tmp_path)
    yield found
    found.go()
