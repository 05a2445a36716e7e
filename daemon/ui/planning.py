"""Plan before run: paste a job file, see what would change, and run exactly that."""

from typing import Any

from daemon.ui import words
from daemon.ui.show import Found, action, page, shown, status_of
from daemon.web.reply import Reply
from daemon.web.visits import Visit
from storage.errors import Malformed, StewardError

_EXAMPLE = """job "hello" {
  type = "service"

  group "hello" {
    task "greeter" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "while :; do date; sleep 1; done"]
      }
    }
  }
}
"""


@page("run.html")
async def form(visit: Visit) -> Found:
    """Ask for a job file: an empty one, or that of a job that is to be changed."""
    job_id = visit.query.text("job")
    if not job_id:
        return {"source": _EXAMPLE}
    namespace = visit.query.text("namespace") or "default"
    job = await visit.get(words.address("/v1/job/", job_id), namespace=namespace)
    found = await visit.get(
        words.address("/v1/job/", job_id, "/submission"),
        namespace=namespace,
        version=job["Version"],
    )
    return {"source": found["Source"], "job_id": job_id}


async def plan(visit: Visit) -> Reply:
    """Show what running a job file would change, and where it would be placed."""
    source = _source(visit)
    found: dict[str, Any] = {"source": source}
    try:
        job = await _parsed(visit, source)
        namespace = job.get("Namespace") or "default"
        body = {"Job": job, "Diff": True}
        path = words.address("/v1/job/", job["ID"], "/plan")
        planned = await visit.post(path, body, namespace=namespace, limits=True)
    except StewardError as error:
        return await shown(visit, "run.html", {**found, "message": str(error)}, status_of(error))
    return await shown(visit, "run.html", {**found, "job": job, "plan": planned})


@action
async def run(visit: Visit) -> str:
    """Run a job file, if the job has not changed since it was planned."""
    source = _source(visit)
    index = visit.form.get("index", "")
    if not (index.isascii() and index.isdecimal() and len(index) < 20):
        raise Malformed(f"index = {index!r} is not the index of a plan: plan the job first")
    job = await _parsed(visit, source)
    namespace = job.get("Namespace") or "default"
    body = {
        "Job": job,
        "EnforceIndex": True,
        "JobModifyIndex": int(index),
        "Submission": {"Source": source, "Format": "hcl2"},
    }
    await visit.post("/v1/jobs", body, namespace=namespace)
    return words.address("/ui/job/", job["ID"], namespace=namespace)


def _source(visit: Visit) -> str:
    return visit.form.get("source", "").replace("\r\n", "\n")


async def _parsed(visit: Visit, source: str) -> dict[str, Any]:
    """Return the job that a job file describes. Raises what parsing raises."""
    body = {"JobHCL": source, "Canonicalize": True}
    job: dict[str, Any] = await visit.post("/v1/jobs/parse", body)
    return job
