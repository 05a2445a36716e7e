"""The pages of one job: its state, its history, and its runs."""

from datetime import date
from typing import Any
from urllib.parse import quote

import trio

from daemon.flow.workflow_keys import JOB_KEYS, KEYS
from daemon.ui import formatting, heatmap, highlight, rollout
from daemon.ui.cluster import ALLOCATIONS, INSTANCES, checks
from daemon.ui.render import Found, page
from daemon.ui.tables import sort_table
from daemon.ui.usage import UsageSection, usage_section
from daemon.web.ui_session import UiRequest
from storage.errors import NotFound
from storage.records.flow import AFTER

_ALLOCATIONS = 200  # latest allocations on the page of a job
_GROUPS = 100  # groups that the page lists at first
_STRIP = 50  # child jobs in the strip of a page
_MOST_RUNS = 500  # runs of one day, or of a longer list
RESULTS = ("complete", "failed", "stopped", "blocked", "active")  # filters of runs
_KEYS = frozenset(KEYS)
_PAYLOAD_SCHEME = "payload://"  # scheme of artifacts that are input files of a dispatch
_VERSIONS = 200  # newest versions that the form of a comparison offers
_NEWEST = 20  # allocations, evaluations and slots that a page shows at first


def job_url(ui_request: UiRequest, suffix: str = "") -> str:
    """Return the API path of the page's job."""
    return formatting.address("/v1/job/", ui_request["job_id"], suffix)


async def job_header(ui_request: UiRequest, tab: str) -> dict[str, object]:
    """Return the data that all pages of a job show."""
    namespace = ui_request.query.text("namespace") or "default"
    job = await ui_request.get(job_url(ui_request), namespace=namespace)
    return {
        "job": job,
        "state": await ui_request.get(job_url(ui_request, "/state"), namespace=namespace),
        "namespace": namespace,
        "tab": tab,
        "follow": job["ID"],
        "is_workflow": _has_runs(job),
        "base": f"/ui/job/{quote(job['ID'], safe='')}",
    }


def _has_runs(job: dict[str, Any]) -> bool:
    """Return whether a job is a workflow that has its own runs, not only the runs of children."""
    if job["Type"] != "batch" or job["Periodic"]:
        return False
    if job["ParameterizedJob"] and not job["Dispatched"]:
        return False
    if not JOB_KEYS.isdisjoint(job["Meta"] or ()):
        return True
    return any(not _KEYS.isdisjoint(group["Meta"] or ()) for group in job["TaskGroups"] or ())


@page("job.html", is_shared=True)
async def overview(ui_request: UiRequest) -> Found:
    """Show a job: its groups, allocations, latest deployment and services."""
    base = await job_header(ui_request, "overview")
    parameters = {"namespace": base["namespace"]}
    summary = await ui_request.get(job_url(ui_request, "/summary"), **parameters)
    scale = await ui_request.get(job_url(ui_request, "/scale"), **parameters)
    older = ui_request.query.text("older")
    allocations, next_token = await ui_request.get_page(
        job_url(ui_request, "/allocations"), _ALLOCATIONS, older, **parameters
    )
    job: Any = base["job"]
    state: Any = base["state"]
    deployment = await ui_request.get(job_url(ui_request, "/deployment"), **parameters)
    services, more_services = await _services(ui_request, parameters)
    return {
        **base,
        "summary": summary,
        "scale": scale["TaskGroups"] or {},
        "groups": _groups(ui_request, base),
        "allocations": sort_table(
            "allocations", allocations, ui_request.query.text("sort-allocations"), ALLOCATIONS
        ),
        "older": older,
        "next_token": next_token,
        "deployment": deployment,
        "rollout": rollout.rollout(deployment, allocations, ui_request.now)
        if deployment and not older
        else None,
        "evaluations": await ui_request.get(
            job_url(ui_request, "/evaluations"), per_page=1, **parameters
        ),
        "services": services,
        "more_services": more_services,
        "parent": job["ParentID"],
        "actions": _actions(job, allocations),
        "history": await _history(ui_request, base),
        "told": await _notifications(ui_request, base),
        "error": state["Error"],
        "runs": await _runs(ui_request, base),
        "links": await ui_request.get(job_url(ui_request, "/links"), **parameters),
        "arrivals": await _arrivals(ui_request, base),
    }


def _groups(ui_request: UiRequest, base: dict[str, object]) -> list[dict[str, Any]]:
    """Return the groups that the page lists: all, or the first groups and that of a rejected form."""
    job: Any = base["job"]
    groups: list[dict[str, Any]] = job["TaskGroups"] or []
    if ui_request.query.text("groups") == "all":
        return groups
    named = ui_request.rejected(f"{base['base']}/scale").value("group")
    return groups[:_GROUPS] + [group for group in groups[_GROUPS:] if group["Name"] == named]


async def _arrivals(ui_request: UiRequest, base: dict[str, object]) -> list[dict[str, Any]]:
    """Return the newest triggers of this job; empty if it does not follow other jobs."""
    job: Any = base["job"]
    if AFTER not in (job["Meta"] or {}):
        return []
    parameters = {"namespace": base["namespace"], "per_page": _NEWEST}
    arrivals: list[dict[str, Any]] = await ui_request.get(
        job_url(ui_request, "/triggers"), **parameters
    )
    return arrivals


async def _runs(ui_request: UiRequest, base: dict[str, object]) -> list[dict[str, Any]]:
    """Return the latest children of a periodic or parameterized job; empty for other jobs."""
    state: Any = base["state"]
    if not state["Runs"]:
        return []
    parameters = {"namespace": base["namespace"], "per_page": _STRIP}
    rows: list[dict[str, Any]] = await ui_request.get(job_url(ui_request, "/runs"), **parameters)
    return rows


async def _history(ui_request: UiRequest, base: dict[str, object]) -> UsageSection | None:
    """Return the usage section; None for a job that only starts child jobs."""
    job: Any = base["job"]
    if job["Periodic"] or job["ParameterizedJob"]:
        return None
    return await usage_section(
        ui_request, job_url(ui_request), str(base["base"]), str(base["namespace"])
    )


async def _services(
    ui_request: UiRequest, query: dict[str, object]
) -> tuple[list[dict[str, Any]], str]:
    """Return services of a job with their latest check results, and the next page token."""
    registrations, more = await ui_request.get_page(
        job_url(ui_request, "/services"), INSTANCES, ui_request.query.text("services"), **query
    )
    for registration in registrations:
        registration["Checks"] = await checks(
            ui_request, registration["ServiceName"], registration["AllocID"]
        )
    return registrations, more


def _actions(job: dict[str, Any], allocations: list[Any]) -> list[dict[str, object]]:
    """Return the actions of a job, each with the latest allocation that can run it."""
    running = [alloc for alloc in allocations if alloc["ClientStatus"] == "running"]
    running.sort(key=lambda alloc: alloc["CreateIndex"], reverse=True)
    return [
        {
            "action": action,
            "task": task["Name"],
            "alloc": next(
                (alloc for alloc in running if alloc["TaskGroup"] == group["Name"]), None
            ),
        }
        for group in job["TaskGroups"] or ()
        for task in group["Tasks"] or ()
        for action in task["Actions"] or ()
    ]


async def _notifications(ui_request: UiRequest, base: dict[str, object]) -> list[object]:
    """Return the notifications about a job; empty if it has no notification channels."""
    job: Any = base["job"]
    if not any(key.startswith("steward_notify") for key in job["Meta"] or {}):
        return []
    listed = await ui_request.get(
        job_url(ui_request, "/notifications"), namespace=base["namespace"]
    )
    return list(listed if ui_request.query.flag("all") else listed[:_NEWEST])


@page("definition.html")
async def definition(ui_request: UiRequest) -> Found:
    """Show the submitted source and the effective definition of a job."""
    base = await job_header(ui_request, "definition")
    document = await ui_request.get(job_url(ui_request, "/definition"), namespace=base["namespace"])
    return {
        **base,
        "source": document["Source"],
        "format": document["Format"],
        "origin": document["Origin"],
    }


async def _sources(
    ui_request: UiRequest, base: dict[str, object], old: int, new: int
) -> tuple[str, str]:
    """Return the sources of two versions: both as submitted, or both generated."""

    async def read(version: int, *, written: bool) -> dict[str, Any]:
        parameters = {"namespace": base["namespace"], "version": version, "written": written}
        document: dict[str, Any] = await ui_request.get(
            job_url(ui_request, "/definition"), **parameters
        )
        return document

    pair = [await read(version, written=False) for version in (old, new)]
    if len({(source["Origin"], source["Format"]) for source in pair}) > 1:
        pair = [await read(version, written=True) for version in (old, new)]
    return str(pair[0]["Source"]), str(pair[1]["Source"])


@page("versions.html")
async def versions(ui_request: UiRequest) -> Found:
    """Show the versions with their changes, newest first."""
    base = await job_header(ui_request, "versions")
    job: Any = base["job"]
    reply = await ui_request.ask(
        "GET",
        job_url(ui_request, "/versions"),
        namespace=base["namespace"],
        diffs=True,
        per_page=ui_request.rows_per_page,
        next_token=ui_request.query.text("next_token"),
    )
    answer = await ui_request.parsed(reply)
    diffs = answer["Diffs"] or []
    rows = [
        (version, diffs[number] if number < len(diffs) else None)
        for number, version in enumerate(answer["Versions"])
    ]
    newest = job["Version"]
    return {
        **base,
        "versions": rows,
        "next_token": reply.next_token,
        "known": _choices(newest),
        "old": max(newest - 1, 0),
        "new": newest,
    }


def _choices(newest: int, *chosen: int) -> list[int]:
    """Return the versions that a form offers: the newest ones, and the chosen ones."""
    return sorted({*range(max(newest + 1 - _VERSIONS, 0), newest + 1), *chosen}, reverse=True)


@page("compare.html")
async def compare(ui_request: UiRequest) -> Found:
    """Show two versions side by side: their sources and their differences."""
    base = await job_header(ui_request, "versions")
    job: Any = base["job"]
    old_version, chosen = ui_request.query.natural("old"), ui_request.query.natural("new")
    new = job["Version"] if chosen is None else chosen
    old = max(new - 1, 0) if old_version is None else old_version
    parameters = {"namespace": base["namespace"], "diffs": True, "diff_version": old}
    # A page begins with the version of its token, or with an older one.
    answer = await ui_request.get(
        job_url(ui_request, "/versions"), per_page=1, next_token=new, **parameters
    )
    if [version["Version"] for version in answer["Versions"]] != [new]:
        raise NotFound(f"version {new} not found")
    before, after = await _sources(ui_request, base, old, new)
    lines = await trio.to_thread.run_sync(highlight.side_by_side, before, after)
    choices = _choices(job["Version"], old, new)
    diff = answer["Diffs"][0]
    return {**base, "known": choices, "old": old, "new": new, "diff": diff, "lines": lines}


@page("deployments.html", is_shared=True)
async def deployments(ui_request: UiRequest) -> Found:
    """Show the deployments of a job."""
    base, after = await job_header(ui_request, "deployments"), ui_request.query.text("next_token")
    parameters: dict[str, object] = {"namespace": base["namespace"]}
    listed, next_token = await ui_request.get_page(
        job_url(ui_request, "/deployments"), ui_request.rows_per_page, after, **parameters
    )
    newest, picture = "", None
    if listed and not after:
        newest = listed[0]["ID"]
        allocations = await ui_request.get(
            job_url(ui_request, "/allocations"), per_page=_ALLOCATIONS, **parameters
        )
        picture = rollout.rollout(listed[0], allocations, ui_request.now)
    return {
        **base,
        "deployments": listed,
        "newest": newest,
        "rollout": picture,
        "next_token": next_token,
    }


@page("job_evaluations.html", is_shared=True)
async def evaluations(ui_request: UiRequest) -> Found:
    """Show the evaluations of a job."""
    base = await job_header(ui_request, "evaluations")
    listed, next_token = await ui_request.get_page(
        job_url(ui_request, "/evaluations"),
        ui_request.rows_per_page,
        ui_request.query.text("next_token"),
        namespace=base["namespace"],
    )
    return {**base, "evaluations": listed, "next_token": next_token}


def _input_files(job: dict[str, Any]) -> list[str]:
    """Return the names of the input files that a dispatch gives to the job's artifacts."""
    sources = {
        artifact["GetterSource"]
        for group in job["TaskGroups"] or ()
        for task in group["Tasks"] or ()
        for artifact in task["Artifacts"] or ()
    }
    return sorted(
        source.removeprefix(_PAYLOAD_SCHEME)
        for source in sources
        if source.startswith(_PAYLOAD_SCHEME)
    )


@page("launches.html", is_shared=True)
async def periodic_page(ui_request: UiRequest) -> Found:
    """Show a job's child jobs in a calendar and a list. The user can select a day and a result."""
    base = await job_header(ui_request, "launches")
    job: Any = base["job"]
    parameters = {"namespace": base["namespace"]}
    day, result = ui_request.query.text("day"), ui_request.query.text("result")
    is_long = bool(ui_request.query.flag("more") or day)
    most = _MOST_RUNS if is_long else _STRIP
    runs = await ui_request.get(
        job_url(ui_request, "/runs"), **parameters, day=day, result=result, per_page=most
    )
    rows = runs if is_long else runs[: ui_request.rows_per_page]
    calendar = await ui_request.get(job_url(ui_request, "/calendar"), **parameters)
    slots, clock = [], None
    if job["Periodic"]:
        slots = await ui_request.get(job_url(ui_request, "/periodic/slots"), **parameters)
        clock = await ui_request.get(job_url(ui_request, "/periodic"), **parameters)
    return {
        **base,
        "input_files": _input_files(job),
        "runs": runs,
        "longest": max((run["Duration"] for run in runs), default=0),
        "rows": rows,
        "is_cut": len(runs) == most or len(rows) < len(runs),
        "results": RESULTS,
        "result": result,
        "calendar": calendar,
        "year": heatmap.year_map(calendar),
        "day": heatmap.day_map(date.fromisoformat(day), calendar["Zone"], runs, slots)
        if day
        else None,
        "slots": slots if ui_request.query.flag("all") else slots[:_NEWEST],
        "more_slots": len(slots) > _NEWEST,
        "clock": clock,
    }
