"""What forms do: each is one call of the API, as the command that stands beside it makes it."""

from base64 import b64encode
from typing import Any

from daemon.ui import words
from daemon.ui.job import at
from daemon.ui.show import action, back
from daemon.web.visits import Visit
from storage.errors import Malformed
from storage.records.base import HOUR

_STEERED = {
    "promote": {"All": True},
    "fail": {},
    "pause": {"Pause": True},
    "resume": {"Pause": False},
}
_DRAIN_WITHIN = HOUR  # as the command has it
_META = "meta."  # what the names of fields begin with that are meta keys


def _namespace(visit: Visit) -> str:
    return visit.query.text("namespace") or "default"


def _job(visit: Visit) -> str:
    return words.address("/ui/job/", visit["job_id"], namespace=_namespace(visit))


def _number(visit: Visit, name: str) -> int:
    """Return a whole number from 0 up that stands in the form. Raises `Malformed`."""
    text = visit.form.get(name, "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Malformed(f"{name} = {text!r} is not a whole number from 0 up")
    return int(text)


@action
async def stop(visit: Visit) -> str:
    """Stop a job; with `purge` forget it."""
    purge = bool(visit.form.get("purge"))
    await visit.ask("DELETE", at(visit), namespace=_namespace(visit), purge=purge)
    return "/ui/jobs" if purge else back(visit, _job(visit))


@action
async def start(visit: Visit) -> str:
    """Register the newest version of a stopped job again, if it is still the newest."""
    namespace = _namespace(visit)
    job: Any = await visit.get(at(visit), namespace=namespace)
    body = {"Job": {**job, "Stop": False}, "EnforceIndex": True}
    body["JobModifyIndex"] = job["JobModifyIndex"]
    await visit.post("/v1/jobs", body, namespace=namespace)
    return back(visit, _job(visit))


@action
async def evaluate(visit: Visit) -> str:
    """Have the scheduler look at a job again."""
    body = {"JobID": visit["job_id"], "EvalOptions": {"ForceReschedule": True}}
    await visit.post(at(visit, "/evaluate"), body, namespace=_namespace(visit))
    return back(visit, _job(visit))


@action
async def scale(visit: Visit) -> str:
    """Give a group another count."""
    body = {
        "Count": _number(visit, "count"),
        "Target": {"Group": visit.form.get("group", "")},
        "Message": "scaled in the web interface",
    }
    await visit.post(at(visit, "/scale"), body, namespace=_namespace(visit))
    return back(visit, _job(visit))


@action
async def revert(visit: Visit) -> str:
    """Make an older version the newest."""
    body = {"JobID": visit["job_id"], "JobVersion": _number(visit, "version")}
    await visit.post(at(visit, "/revert"), body, namespace=_namespace(visit))
    return back(visit, _job(visit))


@action
async def dispatch(visit: Visit) -> str:
    """Run a parameterized job; show its child."""
    fields = visit.form.items()
    meta = {
        name.removeprefix(_META): value
        for name, value in fields
        if name.startswith(_META) and value
    }
    payload = visit.form.get("payload", "").replace("\r\n", "\n")
    body = {"Meta": meta, "Payload": b64encode(payload.encode()).decode() if payload else None}
    namespace = _namespace(visit)
    done = await visit.post(at(visit, "/dispatch"), body, namespace=namespace)
    return words.address("/ui/job/", done["DispatchedJobID"], namespace=namespace)


@action
async def force(visit: Visit) -> str:
    """Launch a child of a periodic job now."""
    await visit.post(at(visit, "/periodic/force"), namespace=_namespace(visit))
    return back(visit, _job(visit))


@action
async def pause(visit: Visit) -> str:
    """Skip the slots of a periodic job, or launch children at them again."""
    act = "resume" if visit.form.get("resume") else "pause"
    await visit.post(at(visit, f"/periodic/{act}"), namespace=_namespace(visit))
    return back(visit, _job(visit))


@action
async def steer(visit: Visit) -> str:
    """Promote, fail, pause or resume a deployment."""
    act, deployment = visit["act"], visit["deployment_id"]
    if act not in _STEERED:
        raise Malformed(f"a deployment cannot be asked to {act!r}: promote, fail, pause, resume")
    path = "pause" if act == "resume" else act
    body = {"DeploymentID": deployment, **_STEERED[act]}
    await visit.post(words.address(f"/v1/deployment/{path}/", deployment), body)
    return back(visit)


@action
async def restart(visit: Visit) -> str:
    """Begin another attempt at the tasks of an allocation that run."""
    alloc_id = visit["alloc_id"]
    body = {"TaskName": visit.form.get("task", "")}
    await visit.post(words.address("/v1/client/allocation/", alloc_id, "/restart"), body)
    return back(visit, words.address("/ui/allocation/", alloc_id))


@action
async def stop_allocation(visit: Visit) -> str:
    """Stop an allocation; the scheduler places another one where the job wants it."""
    alloc_id = visit["alloc_id"]
    await visit.post(words.address("/v1/allocation/", alloc_id, "/stop"))
    return back(visit, words.address("/ui/allocation/", alloc_id))


@action
async def eligibility(visit: Visit) -> str:
    """Say whether new allocations may be placed on a node."""
    node_id = visit["node_id"]
    body = {"NodeID": node_id, "Eligibility": visit.form.get("eligibility", "")}
    await visit.post(words.address("/v1/node/", node_id, "/eligibility"), body)
    return back(visit, words.address("/ui/node/", node_id))


@action
async def drain(visit: Visit) -> str:
    """Have everything on a node end and keep new work away, or stop that."""
    node_id = visit["node_id"]
    spec = {"Deadline": _DRAIN_WITHIN} if visit.form.get("enable") else None
    body = {"NodeID": node_id, "DrainSpec": spec, "MarkEligible": spec is None}
    await visit.post(words.address("/v1/node/", node_id, "/drain"), body)
    return back(visit, words.address("/ui/node/", node_id))
