"""What is not one job: nodes, services, evaluations, events."""

from typing import Any

from daemon.ui import words
from daemon.ui.show import Found, or_nothing, page
from daemon.web.visits import Visit
from storage.errors import NotFound

PAGE = 50  # lines on one page of a list
_LIVE = 'ClientStatus == "running" or ClientStatus == "pending"'


@page("nodes.html")
async def nodes(visit: Visit) -> Found:
    """List the nodes."""
    return {"nodes": await visit.get("/v1/nodes", resources=True), "follow": "*"}


@page("node.html")
async def node(visit: Visit) -> Found:
    """Show a node: its drivers, what it has and gives away, and what runs there."""
    path = words.address("/v1/node/", visit["node_id"])
    found = await visit.get(path)
    live = await visit.get(f"{path}/allocations", filter=_LIVE)
    return {
        "node": found,
        "placed": live,
        "taken": _taken(live),
        # A cluster's hosts do not tell what they use, and this machine is none of them.
        "usage": None if "Hosts" in found else await visit.get("/v1/client/stats"),
        "follow": "*",
    }


def _taken(placed: list[dict[str, Any]]) -> dict[str, int]:
    """Return what allocations have been promised: CPU in MHz, memory in MiB."""
    tasks = [task for one in placed for task in one["AllocatedResources"]["Tasks"].values()]
    return {
        "cpu": sum(task["Cpu"]["CpuShares"] for task in tasks),
        "memory": sum(task["Memory"]["MemoryMB"] for task in tasks),
    }


@page("services.html")
async def services(visit: Visit) -> Found:
    """List the services with their instances, and what their checks found."""
    namespace = visit.query.text("namespace") or "*"
    found = []
    for group in await visit.get("/v1/services", namespace=namespace):
        for one in group["Services"]:
            name, within = one["ServiceName"], group["Namespace"]
            path = words.address("/v1/service/", name)
            instances = await visit.get(path, namespace=within)
            for each in instances:
                each["Checks"] = await checks(visit, name, each["AllocID"])
            found.append({**one, "Namespace": within, "Instances": instances})
    return {"services": found, "follow": "*"}


async def checks(visit: Visit, service: str, alloc_id: str) -> list[dict[str, Any]]:
    """Return what the checks of a service found last in an allocation."""
    try:
        found = await visit.get(words.address("/v1/client/allocation/", alloc_id, "/checks"))
    except NotFound:  # it has ended meanwhile
        return []
    return [one for one in (found or {}).values() if one["Service"] == service]


@page("evaluations.html")
async def evaluations(visit: Visit) -> Found:
    """List what the scheduler decided, newest first."""
    query = visit.query
    found = await visit.ask(
        "GET",
        "/v1/evaluations",
        namespace=query.text("namespace") or "*",
        status=query.text("status"),
        next_token=query.text("next_token"),
        per_page=PAGE,
        reverse=True,
    )
    return {"evaluations": await visit.parsed(found), "next_token": found.next_token, "follow": "*"}


@page("evaluation.html")
async def evaluation(visit: Visit) -> Found:
    """Show a decision of the scheduler: why it was made, and what came of it."""
    path = words.address("/v1/evaluation/", visit["eval_id"])
    found = await visit.get(path)
    placed = await visit.get(f"{path}/allocations")
    return {"evaluation": found, "placed": placed, "follow": found["ID"]}


@page("settings.html")
async def settings(visit: Visit) -> Found:
    """Show how the daemon is set up, and what it holds tasks to."""
    return {
        "settings": await visit.get("/v1/agent/settings"),
        "nodes": await or_nothing(visit, "/v1/nodes") or [],
    }


@page("events.html")
async def events(visit: Visit) -> Found:
    """Show what changes, while it changes; the page's script asks for the events."""
    return {"follow": ""}
