"""The overview, and the list of jobs."""

from typing import Any

from daemon.text.job_state import TROUBLE, State
from daemon.ui.render import Found, optional, page
from daemon.web.ui_session import UiRequest

_LOOKED_AT = 500  # latest jobs that the overview counts
_SHOWN = 8  # rows in each part of the overview
_TYPES = ("service", "batch", "system", "sysbatch")
_RUN_TYPES = ("batch", "sysbatch")  # types of jobs that have runs
_STATES = tuple(map(str, State))
_ORDERS: dict[str, dict[str, object]] = {
    "last change": {},
    "oldest change": {"reverse": True},
    "name": {"sort": "name"},
    "name, from the end": {"sort": "name", "reverse": True},
}
_FAILING = frozenset({State.FAILED, State.FAILING, State.DEGRADED})


@page("overview.html", is_shared=True)
async def overview(ui_request: UiRequest) -> Found:
    """Show running, failing and blocked jobs, and recent changes."""
    namespace = ui_request.query.text("namespace") or "*"
    lines = await ui_request.get(
        "/v1/jobs/statuses", namespace=namespace, states=True, counts=True, per_page=_LOOKED_AT
    )
    lines_by_state: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        lines_by_state.setdefault(line["StewardState"]["State"], []).append(line)
    failed: list[dict[str, Any]] = []
    for kind in _RUN_TYPES:
        failed += await ui_request.get(
            "/v1/jobs/statuses",
            namespace=namespace,
            include_children=True,
            states=True,
            counts=True,
            state=State.FAILED,
            type=kind,
            per_page=5 * _SHOWN,
        )
    coming = await optional(ui_request, "/v1/jobs/launches", namespace=namespace, per_page=_SHOWN)
    return {
        "states": [(word, len(lines_by_state[word])) for word in _STATES if word in lines_by_state],
        "failing": [
            row for word in TROUBLE if word in _FAILING for row in lines_by_state.get(word, ())
        ],
        "deploying": lines_by_state.get(State.DEPLOYING, []),
        "without_place": lines_by_state.get(State.BLOCKED, []),
        "failed_runs": [job for job in failed if job["ParentID"]],
        "newest": lines[:_SHOWN],
        "more": len(lines) == _LOOKED_AT,
        "coming": coming or [],
        "nodes": await optional(ui_request, "/v1/nodes", resources=True) or [],
        "host": await optional(ui_request, "/v1/client/stats"),
        "faults": await optional(ui_request, "/v1/operator/faults") or [],
        "follow": "*",
    }


@page("jobs.html", is_shared=True)
async def index(ui_request: UiRequest) -> Found:
    """List jobs, with search, filters and an order."""
    query = ui_request.query
    search, kind, state = query.text("search").strip(), query.text("type"), query.text("state")
    parameters = {
        "namespace": query.text("namespace") or "*",
        "contains": search,
        "type": kind if kind in _TYPES else "",
        "state": state if state in _STATES else "",
        "include_children": bool(search),
        **_ORDERS.get(query.text("order"), {}),
    }
    lines, next_token = await ui_request.get_page(
        "/v1/jobs/statuses",
        ui_request.rows_per_page,
        query.text("next_token"),
        states=True,
        strip=True,
        counts=True,
        **parameters,
    )
    return {
        "lines": lines,
        "next_token": next_token,
        "types": _TYPES,
        "states": _STATES,
        "orders": tuple(_ORDERS),
        "follow": "*",
    }
