"""The usage section of nodes, jobs and allocations: charts over a selected time range."""

from typing import Any

import msgspec

from daemon.ui import charts, formatting
from daemon.ui.render import Found, page
from daemon.web.ui_session import UiRequest, build_in_thread
from storage.errors import Malformed


class Range(msgspec.Struct, frozen=True):
    """A time range that ends now: the API parameters `from` and `step`, and the label in words."""

    begin: str
    step: str
    words: str
    every: int  # seconds between two updates of an open page


RANGES = {
    "5m": Range("5m", "5s", "5 minutes", 5),
    "1h": Range("1h", "1m", "1 hour", 10),
    "6h": Range("6h", "5m", "6 hours", 60),
    "24h": Range("24h", "15m", "24 hours", 60),
    "7d": Range("7d", "2h", "7 days", 300),
    "30d": Range("30d", "6h", "30 days", 300),
}
_DEFAULT = "1h"


class TaskCharts(msgspec.Struct, frozen=True):
    """The charts of a whole object, or of one of its tasks."""

    task: str
    charts: list[charts.Chart]


class UsageSection(msgspec.Struct, frozen=True, kw_only=True):
    """The data of the usage section; `source` is the URL that returns only this section."""

    enabled: bool
    chosen: str
    about: Range
    links: list[tuple[str, str, str]]  # key, text and URL of each range
    source: str
    parts: list[TaskCharts]
    no_network: str  # why the network of some or all tasks has no chart
    begin: int
    end: int


async def usage_section(
    ui_request: UiRequest, path: str, here: str, namespace: str = ""
) -> UsageSection:
    """Return the usage section of the page `here`, for the object at a path of the API.

    Raises `Malformed` for an unknown range.
    """
    chosen = ui_request.query.text("range") or _DEFAULT
    if chosen not in RANGES:
        raise Malformed(f"range={chosen[:20]!r} is not known: give one of {', '.join(RANGES)}")
    usage_range = RANGES[chosen]
    parameters: dict[str, object] = {"from": usage_range.begin, "step": usage_range.step}
    history = await ui_request.get(f"{path}/history", **parameters, namespace=namespace)
    within = namespace if namespace != "default" else ""
    return UsageSection(
        enabled=history["Enabled"],
        chosen=chosen,
        about=usage_range,
        links=[
            (
                key,
                usage_range.words,
                formatting.address(here, range=key, namespace=within) + "#usage",
            )
            for key, usage_range in RANGES.items()
        ],
        source=formatting.address(f"{here}/usage", range=chosen, namespace=within),
        parts=await build_in_thread(_parts, history),
        no_network=history["NoNetwork"],
        begin=history["From"],
        end=history["To"],
    )


def _parts(history: dict[str, Any]) -> list[TaskCharts]:
    """Return the charts of the whole object. If it has several tasks, add the charts of each."""
    tasks = [sample["Task"] for sample in history["Series"] if sample["Task"]]
    parts = [TaskCharts("", charts.charts_of(history))]
    if len(tasks) > 1:
        parts += [TaskCharts(task, charts.charts_of(history, task)) for task in tasks]
    return [part for part in parts if part.charts]


@page("usage.html")
async def of_node(ui_request: UiRequest) -> Found:
    """Show only the usage section of a node."""
    path = formatting.address("/v1/node/", ui_request["node_id"])
    here = formatting.address("/ui/node/", ui_request["node_id"])
    return {"history": await usage_section(ui_request, path, here)}


@page("usage.html")
async def of_job(ui_request: UiRequest) -> Found:
    """Show only the usage section of a job."""
    path = formatting.address("/v1/job/", ui_request["job_id"])
    here = formatting.address("/ui/job/", ui_request["job_id"])
    namespace = ui_request.query.text("namespace") or "default"
    return {"history": await usage_section(ui_request, path, here, namespace)}


@page("usage.html")
async def of_allocation(ui_request: UiRequest) -> Found:
    """Show only the usage section of an allocation."""
    path = formatting.address("/v1/allocation/", ui_request["alloc_id"])
    here = formatting.address("/ui/allocation/", ui_request["alloc_id"])
    return {"history": await usage_section(ui_request, path, here)}
