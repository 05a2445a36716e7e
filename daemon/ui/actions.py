"""Form actions. Each is one API call, and has the same effect as the command next to the form."""

from base64 import b64encode
from typing import Any

from daemon.ui import formatting
from daemon.ui.job import job_url
from daemon.ui.render import action, form_action, return_url
from daemon.web.ui_session import UiRequest
from storage.errors import Malformed
from storage.records.base import HOUR

_STEERED = {
    "promote": {"All": True},
    "fail": {},
    "pause": {"Pause": True},
    "resume": {"Pause": False},
}
_DRAIN_WITHIN = HOUR  # the default deadline of the command
_META = "meta."  # prefix of form fields for metadata
_FILE = "file."  # prefix of form fields for the digests of input files


def _namespace(ui_request: UiRequest) -> str:
    return ui_request.query.text("namespace") or "default"


def _job(ui_request: UiRequest, below: str = "") -> str:
    namespace = _namespace(ui_request)
    return formatting.address("/ui/job/", ui_request["job_id"], below, namespace=namespace)


def _number(ui_request: UiRequest, name: str) -> int:
    """Return a non-negative integer of the form. Raises `Malformed`."""
    text = ui_request.form.get(name, "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Malformed(f"{name} = {text!r} is not a whole number of at least 0")
    return int(text)


@action
async def stop(ui_request: UiRequest) -> str:
    """Stop a job; with `purge`, also delete it."""
    purge = bool(ui_request.form.get("purge"))
    await ui_request.ask(
        "DELETE", job_url(ui_request), namespace=_namespace(ui_request), purge=purge
    )
    return "/ui/jobs" if purge else return_url(ui_request, _job(ui_request))


@action
async def start(ui_request: UiRequest) -> str:
    """Register the latest version of a stopped job again.

    The API rejects the request if the job changes in the meantime.
    """
    namespace = _namespace(ui_request)
    job: Any = await ui_request.get(job_url(ui_request), namespace=namespace)
    body = {"Job": {**job, "Stop": False}, "EnforceIndex": True}
    body["JobModifyIndex"] = job["JobModifyIndex"]
    await ui_request.post("/v1/jobs", body, namespace=namespace)
    return return_url(ui_request, _job(ui_request))


@action
async def evaluate(ui_request: UiRequest) -> str:
    """Evaluate a job again."""
    body = {"JobID": ui_request["job_id"], "EvalOptions": {"ForceReschedule": True}}
    await ui_request.post(job_url(ui_request, "/evaluate"), body, namespace=_namespace(ui_request))
    return return_url(ui_request, _job(ui_request))


@form_action(lambda ui_request: _job(ui_request))
async def scale(ui_request: UiRequest) -> str:
    """Change the count of a group."""
    body = {
        "Count": _number(ui_request, "count"),
        "Target": {"Group": ui_request.form.get("group", "")},
        "Message": "scaled in the web interface",
    }
    await ui_request.post(job_url(ui_request, "/scale"), body, namespace=_namespace(ui_request))
    return return_url(ui_request, _job(ui_request))


@action
async def revert(ui_request: UiRequest) -> str:
    """Revert a job to an older version."""
    body = {"JobID": ui_request["job_id"], "JobVersion": _number(ui_request, "version")}
    await ui_request.post(job_url(ui_request, "/revert"), body, namespace=_namespace(ui_request))
    return return_url(ui_request, _job(ui_request))


@form_action(lambda ui_request: _job(ui_request, "/launches"))
async def dispatch(ui_request: UiRequest) -> str:
    """Dispatch a parameterized job; show the child."""

    def given(prefix: str) -> dict[str, str]:
        fields = ui_request.form.items()
        return {
            name.removeprefix(prefix): value
            for name, value in fields
            if name.startswith(prefix) and value
        }

    payload = ui_request.form.get("payload", "").replace("\r\n", "\n")
    body = {
        "Meta": given(_META),
        "Payload": b64encode(payload.encode()).decode() if payload else None,
        "Files": given(_FILE) or None,
    }
    namespace = _namespace(ui_request)
    done = await ui_request.post(job_url(ui_request, "/dispatch"), body, namespace=namespace)
    return formatting.address("/ui/job/", done["DispatchedJobID"], namespace=namespace)


@action
async def force(ui_request: UiRequest) -> str:
    """Launch a child of a periodic job now."""
    await ui_request.post(job_url(ui_request, "/periodic/force"), namespace=_namespace(ui_request))
    return return_url(ui_request, _job(ui_request))


@action
async def pause(ui_request: UiRequest) -> str:
    """Pause or resume a periodic job."""
    act = "resume" if ui_request.form.get("resume") else "pause"
    await ui_request.post(job_url(ui_request, f"/periodic/{act}"), namespace=_namespace(ui_request))
    return return_url(ui_request, _job(ui_request))


@action
async def steer(ui_request: UiRequest) -> str:
    """Promote, fail, pause or resume a deployment."""
    act, deployment = ui_request["act"], ui_request["deployment_id"]
    if act not in _STEERED:
        raise Malformed(f"unknown deployment action {act!r}: choose promote, fail, pause or resume")
    path = "pause" if act == "resume" else act
    body = {"DeploymentID": deployment, **_STEERED[act]}
    await ui_request.post(formatting.address(f"/v1/deployment/{path}/", deployment), body)
    return return_url(ui_request)


@action
async def restart(ui_request: UiRequest) -> str:
    """Restart one task, or all running tasks, of an allocation."""
    alloc_id = ui_request["alloc_id"]
    body = {"TaskName": ui_request.form.get("task", "")}
    await ui_request.post(formatting.address("/v1/client/allocation/", alloc_id, "/restart"), body)
    return return_url(ui_request, formatting.address("/ui/allocation/", alloc_id))


@action
async def stop_allocation(ui_request: UiRequest) -> str:
    """Stop an allocation; the scheduler replaces it if the job still needs it."""
    alloc_id = ui_request["alloc_id"]
    await ui_request.post(formatting.address("/v1/allocation/", alloc_id, "/stop"))
    return return_url(ui_request, formatting.address("/ui/allocation/", alloc_id))


@action
async def eligibility(ui_request: UiRequest) -> str:
    """Set the eligibility of a node."""
    node_id = ui_request["node_id"]
    body = {"NodeID": node_id, "Eligibility": ui_request.form.get("eligibility", "")}
    await ui_request.post(formatting.address("/v1/node/", node_id, "/eligibility"), body)
    return return_url(ui_request, formatting.address("/ui/node/", node_id))


@action
async def drain(ui_request: UiRequest) -> str:
    """Start the drain of a node and make it ineligible, or cancel the drain."""
    node_id = ui_request["node_id"]
    spec = {"Deadline": _DRAIN_WITHIN} if ui_request.form.get("enable") else None
    body = {"NodeID": node_id, "DrainSpec": spec, "MarkEligible": spec is None}
    await ui_request.post(formatting.address("/v1/node/", node_id, "/drain"), body)
    return return_url(ui_request, formatting.address("/ui/node/", node_id))


@action
async def release(ui_request: UiRequest) -> str:
    """Retry a failed unit of work, even if the daemon has stopped retrying it."""
    body = {"Kind": ui_request.form.get("kind", ""), "Key": ui_request.form.get("key", "")}
    await ui_request.post("/v1/operator/faults/release", body)
    return return_url(ui_request, "/ui/")
