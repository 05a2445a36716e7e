"""The pages of workflows: runs, a run, and operations of users on it."""

from contextlib import suppress
from typing import Any

import trio

from daemon.ui import flow_picture, formatting
from daemon.ui.job import job_header, job_url
from daemon.ui.render import Found, action, page, return_url
from daemon.web.ui_session import UiRequest
from storage.errors import Malformed, NotFound
from storage.records.allocation import is_overtime
from storage.records.flow import FlowStatus

_STRIP = 12  # newest runs of a job, as links
_STEPS = 100  # steps that the page of a run lists at first
_ELEMENTS = 500  # newest allocations, for the links of steps


@page("flow_runs.html", is_shared=True)
async def index(ui_request: UiRequest) -> Found:
    """List the runs of workflows, newest first."""
    query = ui_request.query
    status = query.text("status")
    listed, next_token = await ui_request.get_page(
        "/v1/runs",
        ui_request.rows_per_page,
        query.text("next_token"),
        namespace=query.text("namespace") or "*",
        prefix=query.text("search").strip(),
        status=status if status in (*FlowStatus,) else "",
        reverse=query.text("order") == "oldest",
    )
    return {
        "runs": listed,
        "next_token": next_token,
        "statuses": [*FlowStatus],
        "follow": "*",
    }


@page("queues.html", is_shared=True)
async def queues(ui_request: UiRequest) -> Found:
    """List the queues of runs, and show the runs of the selected queue."""
    query = ui_request.query
    namespace, name = query.text("namespace") or "*", query.text("name")
    listed, next_token = await ui_request.get_page(
        "/v1/concurrency",
        ui_request.rows_per_page,
        query.text("next_token"),
        namespace=namespace,
    )
    queue = None
    if name and namespace != "*":
        with suppress(NotFound):  # the queue has neither a run nor a limit
            path = formatting.address("/v1/concurrency/", name)
            queue = await ui_request.get(path, namespace=namespace)
    return {
        "queues": listed,
        "next_token": next_token,
        "queue": queue,
        "follow": "*",
    }


@page("flow_run.html", is_shared=True)
async def run(ui_request: UiRequest) -> Found:
    """Show a run: its graph, its steps on a time axis, and the operations on it."""
    base = await job_header(ui_request, "run")
    namespace = base["namespace"]
    number = ui_request.query.natural("number")
    document = await ui_request.get(
        job_url(ui_request, "/run"), namespace=namespace, number="" if number is None else number
    )
    job: Any = base["job"]
    newest = await ui_request.get(
        job_url(ui_request, "/runs"), namespace=namespace, per_page=_STRIP
    )
    # without the runs of children
    own_runs = [recent for recent in newest if recent["ID"] == job["ID"]]
    placed = await ui_request.get(
        job_url(ui_request, "/allocations"),
        namespace=namespace,
        per_page=_ELEMENTS,
        task_states="false",
    )
    drawn = await trio.to_thread.run_sync(_drawn, document["Steps"], ui_request.now)
    return {
        **base,
        "run": document,
        **drawn,
        "runs": own_runs,
        "is_newest": not own_runs or document["Number"] == own_runs[0]["Number"],
        "most_steps": _STEPS if ui_request.query.text("steps") != "all" else len(document["Steps"]),
        "groups": {task_group["Name"]: task_group for task_group in job["TaskGroups"] or ()},
        "elements": _newest(placed),
    }


def _drawn(steps: list[dict[str, Any]], now: int) -> dict[str, object]:
    line = flow_picture.timeline(steps, now)
    return {"line": line, "graph": flow_picture.picture(steps, line.chain if line else ())}


def _newest(placed: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, by step, the allocation that the page links to.

    It is the newest allocation that failed or exceeded its `max_run_duration`, or else the newest.
    """

    def order(alloc: dict[str, Any]) -> tuple[bool, int]:
        is_late = is_overtime(alloc["ClientStatus"], alloc["ClientDescription"])
        return alloc["ClientStatus"] == "failed" or is_late, int(alloc["CreateIndex"])

    return {alloc["TaskGroup"]: alloc for alloc in sorted(placed, key=order)}


@action
async def act(ui_request: UiRequest) -> str:
    """Cancel a run, or skip, accept, re-run, approve or reject steps of it, or run one step."""
    name, form = ui_request.request.path.rpartition("/")[2], ui_request.form
    number = _number(form.get("number", "").strip() or "0", "number", "the number of a run")
    body: dict[str, object] = {"Number": number, "Note": form.get("note", "").strip()}
    if step := form.get("step", ""):
        body["Steps"] = [step]
    if form.get("every"):
        body["Every"] = True
    if form.get("failed"):
        body["Failed"] = True
    if form.get("now"):
        body["Now"] = True
    if texts := form.get("outputs", "").strip():
        body["Outputs"] = _outputs(texts)
    if element := form.get("element", "").strip():
        body["Element"] = _number(element, "element", "the index of an element")
    namespace = ui_request.query.text("namespace") or "default"
    answer = await ui_request.ask(
        "POST", job_url(ui_request, f"/run/{name}"), body, namespace=namespace
    )
    ui_request.decode_reply(
        answer
    )  # an operation that no longer applies is rejected with its reason
    page_of_run = formatting.address(
        "/ui/job/", ui_request["job_id"], "/run", namespace=ui_request.query.text("namespace")
    )
    return return_url(ui_request, page_of_run)


def _number(text: str, field: str, meaning: str) -> int:
    """Return the number in a field of a form. Raises `Malformed`."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Malformed(f"{field} = {text!r} is not {meaning}")
    return int(text)


def _outputs(text: str) -> dict[str, str]:
    """Return the outputs in a field of a form, one `NAME=VALUE` per line. Raises `Malformed`."""
    outputs = dict[str, str]()
    for line in filter(str.strip, text.splitlines()):
        name, equals, value = line.partition("=")
        if not equals:
            raise Malformed(f"outputs: {line!r} is not of the form NAME=VALUE")
        if name.strip() in outputs:
            raise Malformed(f"outputs: {name.strip()!r} is named twice; name it once")
        outputs[name.strip()] = value
    return outputs
