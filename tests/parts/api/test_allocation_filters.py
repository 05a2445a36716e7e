"""Filters of allocations: they see all fields of an allocation, also those that lists omit."""

from typing import Any

import msgspec
import pytest

from daemon.api import job_status
from daemon.api.cluster import allocations, nodes
from daemon.api.routes import NODE_READ, READ_ALL
from daemon.web.blocking import _read
from daemon.web.parameters import QueryParameters
from daemon.web.request import ReadRoute
from daemon.web.response_cache import ResponseCache
from storage.errors import Malformed
from storage.records.allocation import ClientStatus
from storage.records.job import JobType
from storage.store import Store
from tests.parts.api.requests import caller, request
from tests.parts.evals.cluster import Cluster
from tests.samples import group, job
from tests.unit.scheduler.world import ROLLING, node

LISTS = {
    "all": ReadRoute("/v1/allocations", allocations.list_allocations, READ_ALL),
    "job": ReadRoute("/v1/job/{job_id}/allocations", job_status.job_allocations, READ_ALL),
    "node": ReadRoute("/v1/node/{node_id}/allocations", nodes.node_allocations, NODE_READ),
}


@pytest.fixture
async def cluster(store: Store) -> Cluster:
    """Return a cluster with the failed allocation of a service and the waiting one of a batch job."""
    cluster = Cluster(store)
    await cluster.join(node())
    await cluster.register(job("web", group(update=ROLLING), priority=70))
    await cluster.register(job("night", type=JobType.BATCH))
    await cluster.work()
    (alloc,) = cluster.allocations("web")
    await cluster.report(alloc, ClientStatus.FAILED)
    return cluster


async def found(cluster: Cluster, where: str, text: str) -> set[str]:
    """Return the IDs of the jobs whose allocations match."""
    route, parameters = LISTS[where], {"node_id": node().id, "job_id": "web"}
    asked = request(cluster.store, route.needs, caller(), **parameters)
    query = QueryParameters(f"filter={text.replace(' ', '+').replace('=', '%3D')}")
    reply = await _read(route, msgspec.structs.replace(asked, query=query), ResponseCache())
    assert isinstance(reply.body, bytes)
    lines: list[dict[str, Any]] = msgspec.json.decode(reply.body)
    return {line["JobID"] for line in lines}


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        ("TaskStates is not empty", {"web"}),
        ("TaskStates is not empty and TaskStates.main.Failed == true", {"web"}),
        ('Job.Type == "batch"', {"night"}),
        ("Job.Priority == 70", {"web"}),
        ('DeploymentID != ""', {"web"}),
        ('PreviousAllocation == ""', {"web", "night"}),
        ("AllocatedResources.Shared.DiskMB != 0", {"web", "night"}),
        ("Metrics.NodesEvaluated == 1", {"web", "night"}),
        ('JobType == "batch" and TaskStates is empty', {"night"}),
    ],
)
@pytest.mark.parametrize("where", ["all", "node"])
async def test_filter_sees_all_fields(
    cluster: Cluster, where: str, text: str, jobs: set[str]
) -> None:
    assert await found(cluster, where, text) == jobs


async def test_filter_of_the_allocations_of_a_job_sees_all_fields(cluster: Cluster) -> None:
    assert await found(cluster, "job", 'Job.Type == "service"') == {"web"}
    assert await found(cluster, "job", "TaskStates is empty") == set()


async def test_unknown_field_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(Malformed, match='struct field with name "Nope"'):
        await found(cluster, "all", 'Job.Nope == "x"')
