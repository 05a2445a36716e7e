"""The pages of nodes, services, evaluations and events."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from daemon.ui import formatting, machine
from daemon.ui.render import Found, optional, page, render_page, with_error_message
from daemon.ui.tables import sort_table
from daemon.ui.usage import usage_section
from daemon.web.reply import HandlerReply
from daemon.web.ui_session import UiRequest
from storage.errors import NotFound
from storage.records.base import SECOND

PAGE = 50  # lines on one page of a list
_COLUMNS = {
    "name": lambda one: one["Name"],
    "state": lambda one: one["Status"],
    "pool": lambda one: one["NodePool"],
    "address": lambda one: one["Address"],
}
ALLOCATIONS = {  # columns that sort a table of allocations
    "job": lambda one: one["JobID"],
    "group": lambda one: one["TaskGroup"],
    "state": lambda one: one["ClientStatus"],
    "version": lambda one: one["JobVersion"] if "JobVersion" in one else one["Job"]["Version"],
    "began": lambda one: one["CreateTime"],
    "changed": lambda one: one["ModifyTime"],
}
_LIVE = 'ClientStatus == "running" or ClientStatus == "pending"'


@page("nodes.html")
async def nodes(visit: UiRequest) -> Found:
    """List the nodes."""
    found = await visit.get("/v1/nodes", resources=True)
    table = sort_table("nodes", found, visit.query.text("sort-nodes"), _COLUMNS)
    return {"nodes": found, "table": table, "follow": "*"}


@page("node.html")
async def node(visit: UiRequest) -> Found:
    """Show a node: its drivers, its resources, and its running allocations."""
    path = formatting.address("/v1/node/", visit["node_id"])
    found = await visit.get(path)
    live = await visit.get(f"{path}/allocations", filter=_LIVE)
    here = formatting.address("/ui/node/", visit["node_id"])
    return {
        "node": found,
        "placed": sort_table("placed", live, visit.query.text("sort-placed"), ALLOCATIONS),
        "taken": _taken(live),
        "map": machine.machine_map(found, live),
        # The hosts of a cluster report no usage, and this host is not one of them.
        "usage": None if "Hosts" in found else await visit.get("/v1/client/stats"),
        "history": await usage_section(visit, path, here),
        "follow": "*",
    }


def _taken(placed: list[dict[str, Any]]) -> dict[str, int]:
    """Return the allocated resources: CPU in MHz, memory in MiB."""
    tasks = [task for one in placed for task in one["AllocatedResources"]["Tasks"].values()]
    return {
        "cpu": sum(task["Cpu"]["CpuShares"] for task in tasks),
        "memory": sum(task["Memory"]["MemoryMB"] for task in tasks),
    }


@page("services.html")
async def services(visit: UiRequest) -> Found:
    """List the services with their instances, and the latest check results."""
    namespace = visit.query.text("namespace") or "*"
    found = []
    for group in await visit.get("/v1/services", namespace=namespace):
        for one in group["Services"]:
            name, within = one["ServiceName"], group["Namespace"]
            path = formatting.address("/v1/service/", name)
            instances = await visit.get(path, namespace=within)
            for each in instances:
                each["Checks"] = await checks(visit, name, each["AllocID"])
            found.append({**one, "Namespace": within, "Instances": instances})
    return {"services": found, "follow": "*"}


async def checks(visit: UiRequest, service: str, alloc_id: str) -> list[dict[str, Any]]:
    """Return the latest check results of a service in an allocation."""
    try:
        found = await visit.get(formatting.address("/v1/client/allocation/", alloc_id, "/checks"))
    except NotFound:  # it ended in the meantime
        return []
    return [one for one in (found or {}).values() if one["Service"] == service]


@page("evaluations.html")
async def evaluations(visit: UiRequest) -> Found:
    """List the evaluations, newest first."""
    query = visit.query
    found = await visit.ask(
        "GET",
        "/v1/evaluations",
        namespace=query.text("namespace") or "*",
        status=query.text("status"),
        next_token=query.text("next_token"),
        per_page=PAGE,
        reverse=query.text("order") != "oldest",
    )
    return {"evaluations": await visit.parsed(found), "next_token": found.next_token, "follow": "*"}


@page("evaluation.html")
async def evaluation(visit: UiRequest) -> Found:
    """Show an evaluation: its trigger and its result."""
    path = formatting.address("/v1/evaluation/", visit["eval_id"])
    found = await visit.get(path)
    placed = await visit.get(f"{path}/allocations")
    return {"evaluation": found, "placed": placed, "follow": found["ID"]}


@page("settings.html")
async def settings(visit: UiRequest) -> Found:
    """Show the daemon's settings, and the limits that it enforces on tasks."""
    return {
        "settings": await visit.get("/v1/agent/settings"),
        "nodes": await optional(visit, "/v1/nodes") or [],
        "faults": await optional(visit, "/v1/operator/faults"),
    }


@with_error_message
async def test_notifications(visit: UiRequest) -> HandlerReply:
    """Send a test message to the receivers of notifications, and show their answers."""
    name = visit.form.get("name", "").strip()
    results = await visit.post("/v1/operator/notify/test", {"Name": name})
    return await render_page(visit, "notified.html", {"name": name, "results": results})


@with_error_message
async def snapshot(visit: UiRequest) -> HandlerReply:
    """Make a snapshot, and send it as a file."""
    reply = await visit.ask("GET", "/v1/operator/snapshot")
    made = datetime.fromtimestamp(visit.now // SECOND, UTC).strftime("%Y%m%d-%H%M%S")
    headers = {
        **reply.headers,
        "Content-Disposition": f'attachment; filename="steward-{made}.snap"',
    }
    return msgspec.structs.replace(reply, headers=headers)


@page("events.html")
async def events(visit: UiRequest) -> Found:
    """Show events live; the page's script requests them."""
    return {"follow": ""}
