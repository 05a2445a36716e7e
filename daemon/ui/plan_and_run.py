"""The plan page: paste a job file, see the changes, and run exactly this file."""

import re
from typing import Any

import msgspec

from daemon.ui import formatting
from daemon.ui.render import Found, action, page, render_page, status_of
from daemon.web.reply import HandlerReply
from daemon.web.ui_session import UiRequest
from storage.errors import Denied, Malformed, StewardError

MOST_PROBLEMS = 50  # of one check
_POSITION = re.compile(r"[^:\s]*:(\d+),\d+(?:-[\d,]+)?: ")  # file, line and columns
_NAMES = re.compile(r'(?:group|task(?! group)) "?([\w.-]+)', re.IGNORECASE)
_FLAG = "flag."  # prefix of form fields for the values of variables
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
async def form(visit: UiRequest) -> Found:
    """Show the form for a job file, empty or with the source of a job."""
    job_id = visit.query.text("job")
    if not job_id:
        return {"source": _EXAMPLE}
    found = await visit.get(
        formatting.address("/v1/job/", job_id, "/definition"),
        namespace=visit.query.text("namespace") or "default",
        version=visit.query.text("version"),
        written=visit.query.text("written"),
    )
    return {
        "source": found["Source"],
        "format": found["Format"],
        "variables": found["Variables"],
        "flags": found["VariableFlags"] or {},
        "job_id": job_id,
        "origin": found["Origin"],
        "base": found["Version"],
    }


async def plan(visit: UiRequest) -> HandlerReply:
    """Show the changes and placements of a job file."""
    source = _source(visit)
    found: dict[str, Any] = {
        "source": source,
        "format": _format(visit, source),
        "variables": _variables(visit),
        "flags": _flags(visit),
    }
    try:
        job = await _parsed(visit, source)
        namespace = job.get("Namespace") or "default"
        body = {"Job": job, "Diff": True}
        path = formatting.address("/v1/job/", job["ID"], "/plan")
        planned = await visit.post(path, body, namespace=namespace, limits=True)
    except StewardError as error:
        return await render_page(
            visit, "run.html", {**found, "message": str(error)}, status_of(error)
        )
    return await render_page(visit, "run.html", {**found, "job": job, "plan": planned})


async def check(visit: UiRequest) -> HandlerReply:
    """Return the problems of a job file with their lines, as JSON for the editor."""
    visit.request = msgspec.structs.replace(visit.request, accept="")  # errors without excerpts
    source, note = _source(visit), ""
    try:
        problems = await _problems(visit, source)
    except Denied:
        problems, note = [], "Your token does not allow the check of job files."
    return HandlerReply(body={"Problems": problems[:MOST_PROBLEMS], "Note": note})


async def _problems(visit: UiRequest, source: str) -> list[dict[str, object]]:
    """Return the problems of the parser, or else those of the validation. Raises `Denied`."""
    try:
        job = await _parsed(visit, source)
        namespace = job.get("Namespace") or "default"
        found = await visit.post("/v1/validate/job", {"Job": job}, namespace=namespace)
    except Denied:
        raise
    except StewardError as error:
        lines = str(error).removeprefix("Failed to parse job: ").splitlines()
        return [_positioned(one) for one in lines if one.strip()]
    return [
        {"Line": _line_of_names(source, text), "Text": " ".join(text.split())}
        for text in found["ValidationErrors"] or ()
    ]


def _positioned(text: str) -> dict[str, object]:
    """Return a problem of the parser, and its line; 0 if it has none."""
    found = _POSITION.match(text)
    if found is None:
        return {"Line": 0, "Text": text}
    return {"Line": int(found[1]), "Text": text[found.end() :]}


def _line_of_names(source: str, text: str) -> int:
    """Return the line of the innermost block that a problem names; 0 if there is none."""
    lines, begin = source.split("\n"), 0
    for name in _NAMES.findall(text):
        heads = (f'"{name}"', f" {name} ")
        found = (at for at in range(begin, len(lines)) if any(one in lines[at] for one in heads))
        begin = next(found, begin)
    return begin + 1 if begin else 0


@action
async def run(visit: UiRequest) -> str:
    """Run a job file, if the job has not changed since the plan."""
    source = _source(visit)
    index = visit.form.get("index", "")
    if not (index.isascii() and index.isdecimal() and len(index) < 20):
        raise Malformed(f"index = {index!r} is not the index of a plan: plan the job first")
    job = await _parsed(visit, source)
    namespace = job.get("Namespace") or "default"
    submission = {
        "Source": source,
        "Format": _format(visit, source),
        "Variables": _variables(visit),
        "VariableFlags": _flags(visit),
    }
    body = {
        "Job": job,
        "EnforceIndex": True,
        "JobModifyIndex": int(index),
        "Submission": submission,
    }
    await visit.post("/v1/jobs", body, namespace=namespace)
    return formatting.address("/ui/job/", job["ID"], namespace=namespace)


def _variables(visit: UiRequest) -> str:
    return visit.form.get("variables", "").replace("\r\n", "\n")


def _flags(visit: UiRequest) -> dict[str, str]:
    """Return the values of single variables by name."""
    fields = visit.form.items()
    return {name.removeprefix(_FLAG): text for name, text in fields if name.startswith(_FLAG)}


def _format(visit: UiRequest, source: str) -> str:
    """Return the language of a job file."""
    if _from_json(source) is not None:
        return "json"
    return "hcl1" if visit.form.get("format") == "hcl1" else "hcl2"


def _from_json(source: str) -> dict[str, Any] | None:
    """Return the job of a text in the JSON form of the API; None for any other text.

    JSON can also be the JSON form of HCL, which has `job` in lower case.
    """
    if not source.lstrip().startswith("{"):
        return None
    try:
        found = msgspec.json.decode(source, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):  # the parser of job files reports the position
        return None
    job = found.get("Job", found)
    return job if isinstance(job, dict) and "ID" in job else None


def _source(visit: UiRequest) -> str:
    return visit.form.get("source", "").replace("\r\n", "\n")


async def _parsed(visit: UiRequest, source: str) -> dict[str, Any]:
    """Return the job in a job file. Raises the errors of the parser."""
    if (given := _from_json(source)) is not None:
        return given
    body = {
        "JobHCL": source,
        "Canonicalize": True,
        "Variables": _variables(visit),
        "VariableFlags": _flags(visit),
        "HCLv1": _format(visit, source) == "hcl1",
    }
    job: dict[str, Any] = await visit.post("/v1/jobs/parse", body)
    return job
