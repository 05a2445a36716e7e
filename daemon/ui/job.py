"""The pages of one job: its state, its history, and its runs."""

from datetime import date
from typing import Any
from urllib.parse import quote

import trio

from daemon.flow.workflow_keys import KEYS
from daemon.flow.workflow_keys import RUN_QUEUE_KEY as RUN_QUEUE
from daemon.ui import formatting, heatmap, highlight, rollout
from daemon.ui.cluster import ALLOCATIONS, checks
from daemon.ui.render import Found, page
from daemon.ui.tables import sort_table
from daemon.ui.usage import UsageSection, usage_section
from daemon.web.ui_session import UiRequest
from storage.errors import NotFound
from storage.records.flow import AFTER

_ALLOCATIONS = 200  # latest ones on the page of a job
_STRIP = 50  # child jobs in the strip of a page
_MOST_RUNS = 500  # of one day, or if more are wanted
RESULTS = ("complete", "failed", "stopped", "blocked", "active")  # filters of runs
_KEYS = frozenset(KEYS)
_NEWEST = 20  # allocations, evaluations and slots that a page shows at first


def job_url(visit: UiRequest, rest: str = "") -> str:
    """Return the API path of the page's job."""
    return formatting.address("/v1/job/", visit["job_id"], rest)


async def job_header(visit: UiRequest, tab: str) -> dict[str, object]:
    """Return the data that all pages of a job show."""
    namespace = visit.query.text("namespace") or "default"
    job = await visit.get(job_url(visit), namespace=namespace)
    return {
        "job": job,
        "state": await visit.get(job_url(visit, "/state"), namespace=namespace),
        "namespace": namespace,
        "tab": tab,
        "follow": job["ID"],
        "is_workflow": _has_runs(job),
        "base": f"/ui/job/{quote(job['ID'], safe='')}",
    }


def _has_runs(job: dict[str, Any]) -> bool:
    """Return whether a job is a workflow that runs itself, and not in its children."""
    if job["Type"] != "batch" or job["Periodic"]:
        return False
    if job["ParameterizedJob"] and not job["Dispatched"]:
        return False
    if RUN_QUEUE in (job["Meta"] or ()):
        return True
    return any(not _KEYS.isdisjoint(group["Meta"] or ()) for group in job["TaskGroups"] or ())


@page("job.html")
async def overview(visit: UiRequest) -> Found:
    """Show a job: its groups, allocations, latest deployment and services."""
    base = await job_header(visit, "overview")
    asked = {"namespace": base["namespace"]}
    summary = await visit.get(job_url(visit, "/summary"), **asked)
    scale = await visit.get(job_url(visit, "/scale"), **asked)
    older = visit.query.text("older")
    found = await visit.ask(
        "GET",
        job_url(visit, "/allocations"),
        per_page=_ALLOCATIONS,
        next_token=older,
        **asked,
    )
    allocations = await visit.parsed(found)
    job: Any = base["job"]
    state: Any = base["state"]
    deployment = await visit.get(job_url(visit, "/deployment"), **asked)
    return {
        **base,
        "summary": summary,
        "scale": scale["TaskGroups"] or {},
        "allocations": sort_table(
            "allocations", allocations, visit.query.text("sort-allocations"), ALLOCATIONS
        ),
        "older": older,
        "next_token": found.next_token,
        "deployment": deployment,
        "rollout": rollout.rollout(deployment, allocations, visit.now)
        if deployment and not older
        else None,
        "evaluations": (await visit.get(job_url(visit, "/evaluations"), **asked))[:1],
        "services": await _services(visit, asked),
        "parent": job["ParentID"],
        "actions": _actions(job, allocations),
        "history": await _history(visit, base),
        "told": await _told(visit, base),
        "error": state["Error"],
        "runs": await _runs(visit, base),
        "links": await visit.get(job_url(visit, "/links"), **asked),
        "arrivals": await _arrivals(visit, base),
    }


async def _arrivals(visit: UiRequest, base: dict[str, object]) -> list[dict[str, Any]]:
    """Return the newest ended runs that a follower has received; empty for other jobs."""
    job: Any = base["job"]
    if AFTER not in (job["Meta"] or {}):
        return []
    asked = {"namespace": base["namespace"], "per_page": _NEWEST}
    found: list[dict[str, Any]] = await visit.get(job_url(visit, "/triggers"), **asked)
    return found


async def _runs(visit: UiRequest, base: dict[str, object]) -> list[dict[str, Any]]:
    """Return the latest children of a periodic or parameterized job; empty for other jobs."""
    state: Any = base["state"]
    if not state["Runs"]:
        return []
    asked = {"namespace": base["namespace"], "per_page": _STRIP}
    found: list[dict[str, Any]] = await visit.get(job_url(visit, "/runs"), **asked)
    return found


async def _history(visit: UiRequest, base: dict[str, object]) -> UsageSection | None:
    """Return the usage section; None for a job whose children run instead of it."""
    job: Any = base["job"]
    if job["Periodic"] or job["ParameterizedJob"]:
        return None
    return await usage_section(visit, job_url(visit), str(base["base"]), str(base["namespace"]))


async def _services(visit: UiRequest, asked: dict[str, object]) -> list[dict[str, Any]]:
    """Return the services of a job with their latest check results."""
    found: list[dict[str, Any]] = await visit.get(job_url(visit, "/services"), **asked)
    for one in found:
        one["Checks"] = await checks(visit, one["ServiceName"], one["AllocID"])
    return found


def _actions(job: dict[str, Any], allocations: list[Any]) -> list[dict[str, object]]:
    """Return the actions of a job, each with the latest allocation that can run it."""
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


async def _told(visit: UiRequest, base: dict[str, object]) -> list[object]:
    """Return the notifications about a job, if it has notification channels."""
    job: Any = base["job"]
    if not any(key.startswith("steward_notify") for key in job["Meta"] or {}):
        return []
    found = await visit.get(job_url(visit, "/notifications"), namespace=base["namespace"])
    return list(found if visit.query.flag("all") else found[:_NEWEST])


@page("definition.html")
async def definition(visit: UiRequest) -> Found:
    """Show the submitted source and the effective definition of a job."""
    base = await job_header(visit, "definition")
    found = await visit.get(job_url(visit, "/definition"), namespace=base["namespace"])
    return {
        **base,
        "source": found["Source"],
        "format": found["Format"],
        "origin": found["Origin"],
    }


async def _sources(
    visit: UiRequest, base: dict[str, object], old: int, new: int
) -> tuple[str, str]:
    """Return the sources of two versions: both as submitted, or both generated."""

    async def read(version: int, *, written: bool) -> dict[str, Any]:
        asked = {"namespace": base["namespace"], "version": version, "written": written}
        found: dict[str, Any] = await visit.get(job_url(visit, "/definition"), **asked)
        return found

    pair = [await read(version, written=False) for version in (old, new)]
    if len({(one["Origin"], one["Format"]) for one in pair}) > 1:
        pair = [await read(version, written=True) for version in (old, new)]
    return str(pair[0]["Source"]), str(pair[1]["Source"])


@page("versions.html")
async def versions(visit: UiRequest) -> Found:
    """Show all versions with their changes."""
    base = await job_header(visit, "versions")
    found = await visit.get(job_url(visit, "/versions"), namespace=base["namespace"], diffs=True)
    diffs = found["Diffs"] or []
    rows = [
        (job, diffs[number] if number < len(diffs) else None)
        for number, job in enumerate(found["Versions"])
    ]
    return {**base, "versions": rows}


@page("compare.html")
async def compare(visit: UiRequest) -> Found:
    """Show two versions side by side: their sources and their differences."""
    base = await job_header(visit, "versions")
    job: Any = base["job"]
    given, chosen = visit.query.natural("old"), visit.query.natural("new")
    new = job["Version"] if chosen is None else chosen
    old = max(new - 1, 0) if given is None else given
    asked = {"namespace": base["namespace"], "diffs": True, "diff_version": old}
    found = await visit.get(job_url(visit, "/versions"), **asked)
    known = [one["Version"] for one in found["Versions"]]
    if new not in known:
        raise NotFound(f"version {new} not found")
    before, after = await _sources(visit, base, old, new)
    lines = await trio.to_thread.run_sync(highlight.side_by_side, before, after)
    diff = found["Diffs"][known.index(new)]
    return {**base, "known": known, "old": old, "new": new, "diff": diff, "lines": lines}


@page("deployments.html")
async def deployments(visit: UiRequest) -> Found:
    """Show the deployments of a job."""
    base = await job_header(visit, "deployments")
    found = await visit.get(job_url(visit, "/deployments"), namespace=base["namespace"])
    if not found:
        return {**base, "deployments": [], "newest": "", "rollout": None}
    newest = max(found, key=lambda one: int(one["CreateIndex"]))
    asked = {"namespace": base["namespace"], "per_page": _ALLOCATIONS}
    allocations = await visit.get(job_url(visit, "/allocations"), **asked)
    picture = rollout.rollout(newest, allocations, visit.now)
    return {**base, "deployments": found, "newest": newest["ID"], "rollout": picture}


@page("job_evaluations.html")
async def evaluations(visit: UiRequest) -> Found:
    """Show the evaluations of a job."""
    base = await job_header(visit, "evaluations")
    found = await visit.get(job_url(visit, "/evaluations"), namespace=base["namespace"])
    return {**base, "evaluations": found}


@page("launches.html")
async def periodic_page(visit: UiRequest) -> Found:
    """Show the child jobs of a job: a calendar, one day, and the runs with a result."""
    base = await job_header(visit, "launches")
    job: Any = base["job"]
    asked = {"namespace": base["namespace"]}
    day, result = visit.query.text("day"), visit.query.text("result")
    most = _MOST_RUNS if visit.query.flag("more") or day else _STRIP
    runs = await visit.get(job_url(visit, "/runs"), **asked, day=day, result=result, per_page=most)
    calendar = await visit.get(job_url(visit, "/calendar"), **asked)
    slots, clock = [], None
    if job["Periodic"]:
        slots = await visit.get(job_url(visit, "/periodic/slots"), **asked)
        clock = await visit.get(job_url(visit, "/periodic"), **asked)
    return {
        **base,
        "runs": runs,
        "longest": max((one["Duration"] for one in runs), default=0),
        "is_cut": len(runs) == most,
        "results": RESULTS,
        "result": result,
        "calendar": calendar,
        "year": heatmap.year_map(calendar),
        "day": heatmap.day_map(date.fromisoformat(day), calendar["Zone"], runs, slots)
        if day
        else None,
        "slots": slots if visit.query.flag("all") else slots[:_NEWEST],
        "more_slots": len(slots) > _NEWEST,
        "clock": clock,
    }
