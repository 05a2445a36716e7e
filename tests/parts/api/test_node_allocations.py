"""The allocations of a node: all pages together have the same content as one list."""

from typing import Any

import msgspec
import pytest

from daemon.api.cluster import nodes as api_nodes
from daemon.api.routes import NODE_READ
from daemon.web.blocking import _read
from daemon.web.parameters import QueryParameters
from daemon.web.reply import HandlerReply
from daemon.web.request import ReadRoute
from daemon.web.response_cache import ResponseCache
from storage.errors import NotFound
from storage.queries import cluster_runs
from storage.records.allocation import ClientStatus
from storage.records.cluster_run import ClusterRun, RunStatus
from storage.store import Store
from storage.writer import Transaction
from tests.parts.api.requests import caller, request
from tests.parts.evals.cluster import Cluster
from tests.samples import group, job
from tests.unit.scheduler.world import node

HOSTS = ReadRoute("/v1/node/{node_id}/hosts", api_nodes.hosted_tasks, NODE_READ)
ROUTE = ReadRoute("/v1/node/{node_id}/allocations", api_nodes.node_allocations, NODE_READ)


@pytest.fixture
async def cluster(store: Store) -> Cluster:
    cluster = Cluster(store)
    await cluster.join(node())
    for name in ("one", "two", "three"):
        await cluster.register(job(name, group(count=3)))
        await cluster.work()
    return cluster


async def ask(cluster: Cluster, query: str) -> HandlerReply:
    asked = request(cluster.store, NODE_READ, caller(), node_id=node().id)
    return await _read(
        ROUTE, msgspec.structs.replace(asked, query=QueryParameters(query)), ResponseCache()
    )


async def ids(cluster: Cluster, query: str = "") -> tuple[list[str], str]:
    made = await ask(cluster, query)
    assert isinstance(made.body, bytes)
    found: list[dict[str, Any]] = msgspec.json.decode(made.body)
    return [item["ID"] for item in found], made.next_token


@pytest.mark.parametrize("direction", ["", "&reverse=true"])
async def test_pages_of_a_node_are_consecutive(cluster: Cluster, direction: str) -> None:
    together, token = await ids(cluster, f"per_page=2{direction}")
    while token:
        more, token = await ids(cluster, f"per_page=2&next_token={token}{direction}")
        together += more
    assert together == (await ids(cluster, direction))[0]
    assert len(together) == 9


async def test_allocations_of_a_node_are_sorted_by_time_and_id(cluster: Cluster) -> None:
    every = [alloc for name in ("one", "two", "three") for alloc in cluster.allocations(name)]
    ordered = sorted(every, key=lambda item: (-item.create_index, item.id))
    assert (await ids(cluster))[0] == [item.id for item in ordered]


async def test_filter_keeps_matching_allocations(cluster: Cluster) -> None:
    wanted = {alloc.id for alloc in cluster.allocations("two")}
    assert set((await ids(cluster, "filter=JobID+%3D%3D+%22two%22"))[0]) == wanted


async def test_response_has_the_last_index_of_the_node(cluster: Cluster) -> None:
    last = max(alloc.modify_index for alloc in cluster.allocations("three"))
    assert (await ask(cluster, "per_page=1")).index == last


async def test_holding_parameter_keeps_allocations_that_hold_resources(cluster: Cluster) -> None:
    ended = cluster.allocations("two")[0]
    await cluster.report(ended, ClientStatus.COMPLETE)
    assert set((await ids(cluster, "holding=true"))[0]) == {
        alloc.id for name in ("one", "two", "three") for alloc in cluster.allocations(name)
    } - {ended.id}
    first, token = await ids(cluster, "holding=true&per_page=3")
    rest, _ = await ids(cluster, f"holding=true&next_token={token}")
    assert first + rest == (await ids(cluster, "holding=true"))[0]


async def hosted(
    store: Store, rules: str = "", *, query: str = "", node_id: str = ""
) -> tuple[list[tuple[str, str, str]], str]:
    """Return the running tasks on a page of a node (host, allocation, task), and the next token."""
    who = caller(rules) if rules else caller()
    asked = request(store, NODE_READ, who, node_id=node_id or node().id)
    asked = msgspec.structs.replace(asked, query=QueryParameters(query))
    made = await _read(HOSTS, asked, ResponseCache())
    assert isinstance(made.body, bytes)
    found = msgspec.json.decode(made.body, type=list[dict[str, str]])
    return [(item["Host"], item["AllocationID"], item["Task"]) for item in found], made.next_token


async def test_running_tasks_of_a_cluster_are_listed_with_their_hosts(cluster: Cluster) -> None:
    one, two, three = (cluster.allocations(name)[0] for name in ("one", "two", "three"))

    def run(tx: Transaction) -> None:
        for alloc, host, status in (
            (one, "c2", RunStatus.RUNNING),
            (two, "c1", RunStatus.RUNNING),
            (three, "c1", RunStatus.ENDED),
        ):
            run = ClusterRun(
                allocation_id=alloc.id, task="main", number=0, pool="hpc", status=status, host=host
            )
            cluster_runs.put(tx, run)

    await cluster.store.write(run)
    every, token = await hosted(cluster.store)
    assert every == sorted([("c1", two.id, "main"), ("c2", one.id, "main")], key=lambda it: it[1])
    assert token == ""
    assert (await hosted(cluster.store, 'node { policy = "read" }'))[0] == []
    for query, ordered in (("per_page=1", every), ("per_page=1&reverse=true", every[::-1])):
        first, token = await hosted(cluster.store, query=query)
        rest, _ = await hosted(cluster.store, query=f"{query}&next_token={token}")
        assert first + rest == ordered
    with pytest.raises(NotFound, match="node not found"):
        await hosted(cluster.store, node_id="other")
