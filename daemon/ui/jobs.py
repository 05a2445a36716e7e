"""The overview, and the list of jobs."""

from collections import Counter

from daemon.ui import words
from daemon.ui.show import Found, or_nothing, page
from daemon.web.visits import Visit

PAGE = 50  # jobs on one page of the list
_LOOKED_AT = 500  # newest jobs that the overview counts
_SHOWN = 8  # lines of each part of the overview
_TYPES = ("service", "batch", "system", "sysbatch")
_STATUSES = ("running", "pending", "dead")
_TROUBLE = frozenset({"failed", "degraded", "waiting", "starting"})


@page("overview.html")
async def overview(visit: Visit) -> Found:
    """Show what runs, what fails, what waits and why, and what was done last."""
    namespace = visit.query.text("namespace") or "*"
    lines = await visit.get("/v1/jobs/statuses", namespace=namespace, per_page=_LOOKED_AT)
    states = Counter(words.job_state(line) for line in lines)
    blocked = await or_nothing(
        visit, "/v1/evaluations", namespace=namespace, status="blocked", per_page=_SHOWN
    )
    coming = await or_nothing(visit, "/v1/jobs/launches", namespace=namespace, per_page=_SHOWN)
    return {
        "states": states.most_common(),
        "troubled": [one for one in lines if words.job_state(one) in _TROUBLE][:_SHOWN],
        "newest": lines[:_SHOWN],
        "more": len(lines) == _LOOKED_AT,
        "blocked": blocked or [],
        "coming": coming or [],
        "nodes": await or_nothing(visit, "/v1/nodes", resources=True) or [],
        "machine": await or_nothing(visit, "/v1/client/stats"),
        "follow": "*",
    }


@page("jobs.html")
async def index(visit: Visit) -> Found:
    """List jobs, newest change first: those that a search and choices leave."""
    query = visit.query
    search, kind, status = query.text("search").strip(), query.text("type"), query.text("status")
    asked = {
        "namespace": query.text("namespace") or "*",
        "contains": search,
        "type": kind if kind in _TYPES else "",
        "status": status if status in _STATUSES else "",
        "next_token": query.text("next_token"),
        "include_children": bool(search),
    }
    found = await visit.ask("GET", "/v1/jobs/statuses", per_page=PAGE, **asked)
    return {
        "lines": await visit.parsed(found),
        "next_token": found.next_token,
        "types": _TYPES,
        "statuses": _STATUSES,
        "follow": "*",
    }
