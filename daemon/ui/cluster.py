"""The pages of nodes, services, evaluations and events."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from daemon.ui import formatting, resource_map
from daemon.ui.render import (
    Found,
    keeps_form,
    optional,
    page,
    render_page,
    with_error_message,
)
from daemon.ui.tables import sort_table
from daemon.ui.usage import usage_section
from daemon.web.reply import HandlerReply
from daemon.web.ui_session import UiRequest
from storage.errors import NotFound
from storage.records.base import SECOND

_SERVICES = 20  # services on one page
INSTANCES = 10  # instances of a service, in a list of services
_ROWS = 100  # instances on the page of one service
_COLUMNS = {
    "name": lambda entry: entry["Name"],
    "state": lambda entry: entry["Status"],
    "pool": lambda entry: entry["NodePool"],
    "address": lambda service: service["Address"],
}
ALLOCATIONS = {  # columns that sort a table of allocations
    "job": lambda alloc: alloc["JobID"],
    "group": lambda alloc: alloc["TaskGroup"],
    "state": lambda alloc: alloc["ClientStatus"],
    "version": lambda alloc: (
        alloc["JobVersion"] if "JobVersion" in alloc else alloc["Job"]["Version"]
    ),
    "began": lambda alloc: alloc["CreateTime"],
    "changed": lambda alloc: alloc["ModifyTime"],
}


@page("nodes.html", is_shared=True)
async def nodes(ui_request: UiRequest) -> Found:
    """List the nodes."""
    rows = await ui_request.get("/v1/nodes", resources=True)
    table = sort_table("nodes", rows, ui_request.query.text("sort-nodes"), _COLUMNS)
    return {"nodes": rows, "table": table, "follow": "*"}


@page("node.html", is_shared=True)
async def node(ui_request: UiRequest) -> Found:
    """Show a node: its drivers, its resources, and its running allocations."""
    path = formatting.address("/v1/node/", ui_request["node_id"])
    document = await ui_request.get(path)
    live = await ui_request.get(f"{path}/allocations", holding=True)
    map_ = resource_map.node_map(document, live)
    hosts = None
    if "Hosts" in document:
        hosted = await ui_request.get(f"{path}/hosts")
        hosts = resource_map.pool_map(document, live, hosted, map_.jobs)
    here = formatting.address("/ui/node/", ui_request["node_id"])
    return {
        "node": document,
        "placed": sort_table("placed", live, ui_request.query.text("sort-placed"), ALLOCATIONS),
        "taken": {
            "cpu": sum(job.cpu for job in map_.jobs),
            "memory": sum(job.memory for job in map_.jobs),
        },
        "map": map_,
        "hosts": hosts,
        # The hosts of a cluster report no usage, and this host is not one of them.
        "usage": None if "Hosts" in document else await ui_request.get("/v1/client/stats"),
        "history": await usage_section(ui_request, path, here),
        "follow": "*",
    }


@page("services.html", is_shared=True)
async def services(ui_request: UiRequest) -> Found:
    """List the services with some of their instances, or show one service.

    Each instance has its latest check results.
    """
    query = ui_request.query
    namespace, name = query.text("namespace"), query.text("name")
    after = query.text("next_token")
    if name:
        service = await _service(ui_request, name, namespace or "default", _ROWS, after)
        return {"services": [service], "name": name, "next_token": service["More"], "follow": "*"}
    groups, next_token = await ui_request.get_page(
        "/v1/services", _SERVICES, after, namespace=namespace or "*"
    )
    rows = []
    for group in groups:
        for service in group["Services"]:
            within = group["Namespace"]
            details = await _service(ui_request, service["ServiceName"], within, INSTANCES, "")
            rows.append({**details, **service})
    return {"services": rows, "name": "", "next_token": next_token, "follow": "*"}


async def _service(
    ui_request: UiRequest, name: str, namespace: str, most: int, after: str
) -> dict[str, Any]:
    """Return a service with a page of its instances and their latest check results.

    `most` is the page size, and `after` the page token. `More` is the token of the next page.
    """
    path = formatting.address("/v1/service/", name)
    instances, more = await ui_request.get_page(path, most, after, namespace=namespace)
    for instance in instances:
        instance["Checks"] = await checks(ui_request, name, instance["AllocID"])
    tags = dict.fromkeys(tag for instance in instances for tag in instance["Tags"] or ())
    return {
        "ServiceName": name,
        "Namespace": namespace,
        "Tags": [*tags],
        "Instances": instances,
        "More": more,
    }


async def checks(ui_request: UiRequest, service: str, alloc_id: str) -> list[dict[str, Any]]:
    """Return the latest check results of a service in an allocation."""
    try:
        results = await ui_request.get(
            formatting.address("/v1/client/allocation/", alloc_id, "/checks")
        )
    except NotFound:  # it ended in the meantime
        return []
    return [check for check in (results or {}).values() if check["Service"] == service]


@page("evaluations.html", is_shared=True)
async def evaluations(ui_request: UiRequest) -> Found:
    """List the evaluations, newest first."""
    query = ui_request.query
    listed, next_token = await ui_request.get_page(
        "/v1/evaluations",
        ui_request.rows_per_page,
        query.text("next_token"),
        namespace=query.text("namespace") or "*",
        status=query.text("status"),
        reverse=query.text("order") != "oldest",
    )
    return {"evaluations": listed, "next_token": next_token, "follow": "*"}


@page("evaluation.html", is_shared=True)
async def evaluation(ui_request: UiRequest) -> Found:
    """Show an evaluation: its trigger and its result."""
    path = formatting.address("/v1/evaluation/", ui_request["eval_id"])
    document = await ui_request.get(path)
    placed = await ui_request.get(f"{path}/allocations")
    return {"evaluation": document, "placed": placed, "follow": document["ID"]}


@page("settings.html")
async def settings(ui_request: UiRequest) -> Found:
    """Show the daemon's settings, and the limits that it enforces on tasks."""
    return {
        "settings": await ui_request.get("/v1/agent/settings"),
        "nodes": await optional(ui_request, "/v1/nodes") or [],
        "faults": await optional(ui_request, "/v1/operator/faults"),
    }


@with_error_message
@keeps_form(lambda _: "/ui/settings")
async def test_notifications(ui_request: UiRequest) -> HandlerReply:
    """Send a test message to the receivers of notifications, and show their answers."""
    name = ui_request.form.get("name", "").strip()
    results = await ui_request.post("/v1/operator/notify/test", {"Name": name})
    return await render_page(ui_request, "notified.html", {"name": name, "results": results})


@with_error_message
async def snapshot(ui_request: UiRequest) -> HandlerReply:
    """Make a snapshot, and send it as a file."""
    reply = await ui_request.ask("GET", "/v1/operator/snapshot")
    timestamp = datetime.fromtimestamp(ui_request.now // SECOND, UTC).strftime("%Y%m%d-%H%M%S")
    headers = {
        **reply.headers,
        "Content-Disposition": f'attachment; filename="steward-{timestamp}.snap"',
    }
    return msgspec.structs.replace(reply, headers=headers)


@page("events.html")
async def events(ui_request: UiRequest) -> Found:
    """Show events live; the page's script requests them."""
    return {"follow": ""}
