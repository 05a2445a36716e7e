"""Form actions: each is one API call, equal to the command shown next to the form."""

from base64 import b64encode
from typing import Any

from daemon.ui import formatting
from daemon.ui.job import job_url
from daemon.ui.render import action, return_url
from daemon.web.ui_session import UiRequest
from storage.errors import Malformed
from storage.records.base import HOUR

_STEERED = {
    "promote": {"All": True},
    "fail": {},
    "pause": {"Pause": True},
    "resume": {"Pause": False},
}
_DRAIN_WITHIN = HOUR  # as in the command
_META = "meta."  # prefix of form fields for metadata


def _namespace(visit: UiRequest) -> str:
    return visit.query.text("namespace") or "default"


def _job(visit: UiRequest) -> str:
    return formatting.address("/ui/job/", visit["job_id"], namespace=_namespace(visit))


def _number(visit: UiRequest, name: str) -> int:
    """Return a non-negative integer of the form. Raises `Malformed`."""
    text = visit.form.get(name, "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Malformed(f"{name} = {text!r} is not a whole number from 0 on")
    return int(text)


@action
async def stop(visit: UiRequest) -> str:
    """Stop a job; with `purge`, also delete it."""
    purge = bool(visit.form.get("purge"))
    await visit.ask("DELETE", job_url(visit), namespace=_namespace(visit), purge=purge)
    return "/ui/jobs" if purge else return_url(visit, _job(visit))


@action
async def start(visit: UiRequest) -> str:
    """Register the latest version of a stopped job again, if it is still the latest."""
    namespace = _namespace(visit)
    job: Any = await visit.get(job_url(visit), namespace=namespace)
    body = {"Job": {**job, "Stop": False}, "EnforceIndex": True}
    body["JobModifyIndex"] = job["JobModifyIndex"]
    await visit.post("/v1/jobs", body, namespace=namespace)
    return return_url(visit, _job(visit))


@action
async def evaluate(visit: UiRequest) -> str:
    """Evaluate a job again."""
    body = {"JobID": visit["job_id"], "EvalOptions": {"ForceReschedule": True}}
    await visit.post(job_url(visit, "/evaluate"), body, namespace=_namespace(visit))
    return return_url(visit, _job(visit))


@action
async def scale(visit: UiRequest) -> str:
    """Change the count of a group."""
    body = {
        "Count": _number(visit, "count"),
        "Target": {"Group": visit.form.get("group", "")},
        "Message": "scaled in the web interface",
    }
    await visit.post(job_url(visit, "/scale"), body, namespace=_namespace(visit))
    return return_url(visit, _job(visit))


@action
async def revert(visit: UiRequest) -> str:
    """Revert a job to an older version."""
    body = {"JobID": visit["job_id"], "JobVersion": _number(visit, "version")}
    await visit.post(job_url(visit, "/revert"), body, namespace=_namespace(visit))
    return return_url(visit, _job(visit))


@action
async def dispatch(visit: UiRequest) -> str:
    """Dispatch a parameterized job; show the child."""
    fields = visit.form.items()
    meta = {
        name.removeprefix(_META): value
        for name, value in fields
        if name.startswith(_META) and value
    }
    payload = visit.form.get("payload", "").replace("\r\n", "\n")
    body = {"Meta": meta, "Payload": b64encode(payload.encode()).decode() if payload else None}
    namespace = _namespace(visit)
    done = await visit.post(job_url(visit, "/dispatch"), body, namespace=namespace)
    return formatting.address("/ui/job/", done["DispatchedJobID"], namespace=namespace)


@action
async def force(visit: UiRequest) -> str:
    """Launch a child of a periodic job now."""
    await visit.post(job_url(visit, "/periodic/force"), namespace=_namespace(visit))
    return return_url(visit, _job(visit))


@action
async def pause(visit: UiRequest) -> str:
    """Pause or resume a periodic job."""
    act = "resume" if visit.form.get("resume") else "pause"
    await visit.post(job_url(visit, f"/periodic/{act}"), namespace=_namespace(visit))
    return return_url(visit, _job(visit))


@action
async def steer(visit: UiRequest) -> str:
    """Promote, fail, pause or resume a deployment."""
    act, deployment = visit["act"], visit["deployment_id"]
    if act not in _STEERED:
        raise Malformed(f"unknown deployment action {act!r}: choose promote, fail, pause or resume")
    path = "pause" if act == "resume" else act
    body = {"DeploymentID": deployment, **_STEERED[act]}
    await visit.post(formatting.address(f"/v1/deployment/{path}/", deployment), body)
    return return_url(visit)


@action
async def restart(visit: UiRequest) -> str:
    """Restart the running tasks of an allocation."""
    alloc_id = visit["alloc_id"]
    body = {"TaskName": visit.form.get("task", "")}
    await visit.post(formatting.address("/v1/client/allocation/", alloc_id, "/restart"), body)
    return return_url(visit, formatting.address("/ui/allocation/", alloc_id))


@action
async def stop_allocation(visit: UiRequest) -> str:
    """Stop an allocation; the scheduler replaces it if the job still needs it."""
    alloc_id = visit["alloc_id"]
    await visit.post(formatting.address("/v1/allocation/", alloc_id, "/stop"))
    return return_url(visit, formatting.address("/ui/allocation/", alloc_id))


@action
async def eligibility(visit: UiRequest) -> str:
    """Set the eligibility of a node."""
    node_id = visit["node_id"]
    body = {"NodeID": node_id, "Eligibility": visit.form.get("eligibility", "")}
    await visit.post(formatting.address("/v1/node/", node_id, "/eligibility"), body)
    return return_url(visit, formatting.address("/ui/node/", node_id))


@action
async def drain(visit: UiRequest) -> str:
    """Start the drain of a node and make it ineligible, or cancel the drain."""
    node_id = visit["node_id"]
    spec = {"Deadline": _DRAIN_WITHIN} if visit.form.get("enable") else None
    body = {"NodeID": node_id, "DrainSpec": spec, "MarkEligible": spec is None}
    await visit.post(formatting.address("/v1/node/", node_id, "/drain"), body)
    return return_url(visit, formatting.address("/ui/node/", node_id))


@action
async def release(visit: UiRequest) -> str:
    """Retry a failed unit of the daemon's own work."""
    body = {"Kind": visit.form.get("kind", ""), "Key": visit.form.get("key", "")}
    await visit.post("/v1/operator/faults/release", body)
    return return_url(visit, "/ui/")
