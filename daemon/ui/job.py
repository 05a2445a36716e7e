"""One job: what it is, how it got there, and what becomes of it."""

from typing import Any
from urllib.parse import quote

import trio

from daemon.ui import paint, words
from daemon.ui.cluster import checks
from daemon.ui.show import Found, page
from daemon.web.visits import Visit
from storage.errors import NotFound

_NEWEST = 20  # allocations, evaluations and slots that a page shows at first


def at(visit: Visit, rest: str = "") -> str:
    """Return the path of the visit's job in the API."""
    return words.address("/v1/job/", visit["job_id"], rest)


async def frame(visit: Visit, tab: str) -> dict[str, object]:
    """Return what all pages of a job show."""
    namespace = visit.query.text("namespace") or "default"
    job = await visit.get(at(visit), namespace=namespace)
    return {
        "job": job,
        "namespace": namespace,
        "tab": tab,
        "follow": job["ID"],
        "base": f"/ui/job/{quote(job['ID'], safe='')}",
    }


@page("job.html")
async def overview(visit: Visit) -> Found:
    """Show what a job wants and has: its groups, allocations, newest deployment and services."""
    base = await frame(visit, "overview")
    asked = {"namespace": base["namespace"]}
    summary = await visit.get(at(visit, "/summary"), **asked)
    scale = await visit.get(at(visit, "/scale"), **asked)
    allocations = await visit.get(at(visit, "/allocations"), **asked)
    job: Any = base["job"]
    return {
        **base,
        "summary": summary,
        "scale": scale["TaskGroups"] or {},
        "allocations": allocations,
        "deployment": await visit.get(at(visit, "/deployment"), **asked),
        "evaluations": (await visit.get(at(visit, "/evaluations"), **asked))[:1],
        "services": await _services(visit, asked),
        "parent": job["ParentID"],
        "actions": _actions(job, allocations),
        "told": await _told(visit, base),
    }


async def _services(visit: Visit, asked: dict[str, object]) -> list[dict[str, Any]]:
    """Return the registered services of a job, each with what its checks found last."""
    found: list[dict[str, Any]] = await visit.get(at(visit, "/services"), **asked)
    for one in found:
        one["Checks"] = await checks(visit, one["ServiceName"], one["AllocID"])
    return found


def _actions(job: dict[str, Any], allocations: list[Any]) -> list[dict[str, object]]:
    """Return what may be run in the tasks of a job, each with the newest place where it may."""
    running = [one for one in allocations if one["ClientStatus"] == "running"]
    running.sort(key=lambda one: one["CreateIndex"], reverse=True)
    return [
        {
            "action": action,
            "task": task["Name"],
            "alloc": next((one for one in running if one["TaskGroup"] == group["Name"]), None),
        }
        for group in job["TaskGroups"] or ()
        for task in group["Tasks"] or ()
        for action in task["Actions"] or ()
    ]


async def _told(visit: Visit, base: dict[str, object]) -> list[object]:
    """Return what somebody was told of a job, or will be, if it wishes for that."""
    job: Any = base["job"]
    if not any(key.startswith("steward_notify") for key in job["Meta"] or {}):
        return []
    found = await visit.get(at(visit, "/notifications"), namespace=base["namespace"])
    return list(found[:_NEWEST])


@page("definition.html")
async def definition(visit: Visit) -> Found:
    """Show a job as it was submitted, and as it is understood."""
    base = await frame(visit, "definition")
    job: Any = base["job"]
    return {**base, "source": await _source(visit, base, job["Version"])}


async def _source(visit: Visit, base: dict[str, object], version: int) -> str | None:
    """Return a version as it was submitted, if that is kept."""
    asked = {"namespace": base["namespace"], "version": version}
    try:
        found = await visit.get(at(visit, "/submission"), **asked)
    except NotFound:
        return None
    return str(found["Source"])


@page("versions.html")
async def versions(visit: Visit) -> Found:
    """Show all versions, and what each one changed."""
    base = await frame(visit, "versions")
    found = await visit.get(at(visit, "/versions"), namespace=base["namespace"], diffs=True)
    diffs = found["Diffs"] or []
    rows = [
        (job, diffs[number] if number < len(diffs) else None)
        for number, job in enumerate(found["Versions"])
    ]
    return {**base, "versions": rows}


@page("compare.html")
async def compare(visit: Visit) -> Found:
    """Show two versions beside each other: what they say, and what it means."""
    base = await frame(visit, "versions")
    job: Any = base["job"]
    given, chosen = visit.query.natural("old"), visit.query.natural("new")
    new = job["Version"] if chosen is None else chosen
    old = max(new - 1, 0) if given is None else given
    asked = {"namespace": base["namespace"], "diffs": True, "diff_version": old}
    found = await visit.get(at(visit, "/versions"), **asked)
    known = [one["Version"] for one in found["Versions"]]
    if new not in known:
        raise NotFound(f"version {new} not found")
    before, after = await _source(visit, base, old), await _source(visit, base, new)
    lines = None
    if before is not None and after is not None:
        lines = await trio.to_thread.run_sync(paint.beside, before, after)
    diff = found["Diffs"][known.index(new)]
    return {**base, "known": known, "old": old, "new": new, "diff": diff, "lines": lines}


@page("deployments.html")
async def deployments(visit: Visit) -> Found:
    """Show the roll-outs of a job."""
    base = await frame(visit, "deployments")
    found = await visit.get(at(visit, "/deployments"), namespace=base["namespace"])
    return {**base, "deployments": found}


@page("job_evaluations.html")
async def evaluations(visit: Visit) -> Found:
    """Show what the scheduler decided about a job."""
    base = await frame(visit, "evaluations")
    found = await visit.get(at(visit, "/evaluations"), namespace=base["namespace"])
    return {**base, "evaluations": found}


@page("launches.html")
async def launches(visit: Visit) -> Found:
    """Show the children of a job: those of its clock, and those that were dispatched."""
    base = await frame(visit, "launches")
    job: Any = base["job"]
    children = await visit.get(
        "/v1/jobs/statuses",
        namespace=base["namespace"],
        prefix=f"{job['ID']}/",
        include_children=True,
        per_page=_NEWEST,
    )
    slots, clock = [], None
    if job["Periodic"]:
        slots = await visit.get(at(visit, "/periodic/slots"), namespace=base["namespace"])
        clock = await visit.get(at(visit, "/periodic"), namespace=base["namespace"])
    return {**base, "children": children, "slots": slots[:_NEWEST], "clock": clock}
