"""The plan page: paste a job file, see the changes, and run exactly this file."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from daemon.ui import formatting
from daemon.ui.render import Found, action, page, render_page, status_of, with_error_message
from daemon.web.reply import HandlerReply, of_error
from daemon.web.ui_session import UiRequest, build_in_thread
from storage.errors import Denied, Invalid, Malformed, NotFound, Refused, StewardError
from storage.records import json_steps

MOST_PROBLEMS = 50  # problems of one check
_MOST_NAMES = 8  # names of blocks in a problem
_LONGEST = 2000  # characters of a problem that are shown and searched for names
_LONG = 64 * 1024  # characters of a source; a thread decodes a longer one
_POSITION = re.compile(r"[^:\s]*:(\d+),\d+(?:-[\d,]+)?: ")  # file, line and columns
# Errors of the job file. All other errors concern the daemon or the permissions.
_OF_FILE = (Malformed, Invalid, Refused, NotFound)
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
async def form(ui_request: UiRequest) -> Found:
    """Show the form for a job file, empty or with the source of a job."""
    job_id = ui_request.query.text("job")
    if not job_id:
        return {"source": _EXAMPLE}
    definition = await ui_request.get(
        formatting.address("/v1/job/", job_id, "/definition"),
        namespace=ui_request.query.text("namespace") or "default",
        version=ui_request.query.text("version"),
        written=ui_request.query.text("written"),
    )
    return {
        "source": definition["Source"],
        "format": definition["Format"],
        "variables": definition["Variables"],
        "flags": definition["VariableFlags"] or {},
        "job_id": job_id,
        "draft_namespace": ui_request.query.text("namespace"),
        "origin": definition["Origin"],
        "base": definition["Version"],
    }


@with_error_message
async def plan(ui_request: UiRequest) -> HandlerReply:
    """Show the changes and placements of a job file."""
    source = _source(ui_request)
    document = await _given(source)
    context: dict[str, Any] = {
        "source": source,
        "format": _format(ui_request, document),
        "variables": _variables(ui_request),
        "flags": _flags(ui_request),
        "job_id": ui_request.form.get("job", ""),
        "draft_namespace": ui_request.form.get("namespace", ""),
    }
    try:
        job = await _parsed(ui_request, source, document)
        namespace = job.get("Namespace") or "default"
        body = {"Job": job, "Diff": True, "Submission": _submission(ui_request, source, document)}
        path = formatting.address("/v1/job/", job["ID"], "/plan")
        planned = await ui_request.post(path, body, namespace=namespace, limits=True)
    except (*_OF_FILE, Denied) as error:
        return await render_page(
            ui_request, "run.html", {**context, "message": str(error)}, status_of(error)
        )
    return await render_page(ui_request, "run.html", {**context, "job": job, "plan": planned})


async def check(ui_request: UiRequest) -> HandlerReply:
    """Return the first problems of a job file with their lines, as JSON for the editor."""
    ui_request.request = msgspec.structs.replace(
        ui_request.request, accept=""
    )  # errors without excerpts
    source, note = _source(ui_request), ""
    try:
        problems = await _problems(ui_request, source)
    except Denied:
        problems, note = [], "Your token does not permit checking job files."
    except StewardError as error:  # an error of the daemon, not of the file
        return of_error(error)
    return HandlerReply(body={"Problems": problems, "Note": note})


async def _problems(ui_request: UiRequest, source: str) -> list[dict[str, object]]:
    """Return the problems found by the parser, or else the problems found by validation.

    Raises `Denied`.
    """
    try:
        job = await _parsed(ui_request, source, await _given(source))
        namespace = job.get("Namespace") or "default"
        answer = await ui_request.post("/v1/validate/job", {"Job": job}, namespace=namespace)
    except _OF_FILE as error:
        return await build_in_thread(_of_parser, str(error))
    texts = (answer["ValidationErrors"] or ())[:MOST_PROBLEMS]
    return await build_in_thread(_of_validation, source, texts) if texts else []


def _of_parser(message: str) -> list[dict[str, object]]:
    lines = message.removeprefix("Failed to parse job: ").splitlines()
    return [_positioned(line[:_LONGEST]) for line in lines if line.strip()][:MOST_PROBLEMS]


def _of_validation(source: str, texts: Sequence[str]) -> list[dict[str, object]]:
    """Return problems found by validation, each with the line of the block that it names."""
    lines = source.split("\n")
    return [
        {"Line": _line_of_names(lines, text), "Text": " ".join(text.split())}
        for text in (text[:_LONGEST] for text in texts)
    ]


def _positioned(text: str) -> dict[str, object]:
    """Return a problem that the parser reported, and its line; 0 if the problem has no line."""
    match = _POSITION.match(text)
    if match is None:
        return {"Line": 0, "Text": text}
    return {"Line": int(match[1]), "Text": text[match.end() :]}


def _line_of_names(lines: Sequence[str], text: str) -> int:
    """Return the line of the innermost block that a problem names; 0 if it names no block."""
    begin = 0
    for name in _NAMES.findall(text)[:_MOST_NAMES]:
        heads = (f'"{name}"', f" {name} ")
        matching = (
            number
            for number in range(begin, len(lines))
            if any(head in lines[number] for head in heads)
        )
        begin = next(matching, begin)
    return begin + 1 if begin else 0


@action
async def run(ui_request: UiRequest) -> str:
    """Run a job file, if the job has not changed since the plan."""
    source = _source(ui_request)
    index = ui_request.form.get("index", "")
    if not (index.isascii() and index.isdecimal() and len(index) < 20):
        raise Malformed(f"index = {index!r} is not the index of a plan: plan the job first")
    document = await _given(source)
    job = await _parsed(ui_request, source, document)
    namespace = job.get("Namespace") or "default"
    body = {
        "Job": job,
        "EnforceIndex": True,
        "JobModifyIndex": int(index),
        "Submission": _submission(ui_request, source, document),
    }
    await ui_request.post("/v1/jobs", body, namespace=namespace)
    return formatting.address("/ui/job/", job["ID"], namespace=namespace)


def _submission(
    ui_request: UiRequest, source: str, document: dict[str, Any] | None
) -> dict[str, object]:
    return {
        "Source": source,
        "Format": _format(ui_request, document),
        "Variables": _variables(ui_request),
        "VariableFlags": _flags(ui_request),
    }


def _variables(ui_request: UiRequest) -> str:
    return ui_request.form.get("variables", "").replace("\r\n", "\n")


def _flags(ui_request: UiRequest) -> dict[str, str]:
    """Return the values of the job file's variables that have separate form fields, by name."""
    fields = ui_request.form.items()
    return {name.removeprefix(_FLAG): text for name, text in fields if name.startswith(_FLAG)}


def _format(ui_request: UiRequest, document: dict[str, Any] | None) -> str:
    """Return the format of a job file; `document` is its job if the file is in JSON."""
    if document is not None:
        return "json"
    return "hcl1" if ui_request.form.get("format") == "hcl1" else "hcl2"


async def _given(source: str) -> dict[str, Any] | None:
    """Return the same as `_from_json`, but decode a long text in a thread."""
    return await build_in_thread(_from_json, source) if len(source) > _LONG else _from_json(source)


def _from_json(source: str) -> dict[str, Any] | None:
    """Return the job if the text is in the JSON form of the API; otherwise None.

    For the JSON form of HCL, which has `job` in lower case, the result is also None.
    """
    if not source.lstrip().startswith("{"):
        return None
    try:
        document = json_steps.decode_as(source.encode(), dict[str, Any])
    except (
        Malformed,
        msgspec.DecodeError,
        RecursionError,
    ):  # the parser of job files reports the position
        return None
    job = document.get("Job", document)
    return job if isinstance(job, dict) and "ID" in job else None


def _source(ui_request: UiRequest) -> str:
    return ui_request.form.get("source", "").replace("\r\n", "\n")


async def _parsed(
    ui_request: UiRequest, source: str, document: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the job in a job file, or `document` if the file is JSON.

    Raises the errors of the parser.
    """
    if document is not None:
        return document
    body = {
        "JobHCL": source,
        "Canonicalize": True,
        "Variables": _variables(ui_request),
        "VariableFlags": _flags(ui_request),
        "HCLv1": _format(ui_request, document) == "hcl1",
    }
    job: dict[str, Any] = await ui_request.post("/v1/jobs/parse", body)
    return job
