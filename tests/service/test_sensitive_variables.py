"""Sensitive variables of job files: masked for readers, and unmasked for callers that submit jobs."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from tests.fakes.receiver import open_receiver
from tests.service.daemon import Steward, open_steward
from tests.service.streaming import open_stream
from tests.service.test_acl import SECRET, as_, new_token
from tests.websocket_client import talk

PASSWORD = 'p"ssw0rd <of> the store'  # noqa: S105  # of this test
OTHER = "another one for later"
READS = 'namespace "default" { policy = "read" }'
WRITES = 'namespace "default" { policy = "write" }'
SOURCE = """
variable "password" {
  type      = string
  sensitive = true
}

variable "user" {
  default = "not secret at all"
}

job "talks" {
  type = "batch"

  group "main" {
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "printf '%s' \\"$LOGIN\\""]
      }
      env {
        LOGIN = "${var.user}:${var.password}"
      }
    }
  }
}
"""


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Steward]:
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        steward.token = SECRET
        yield steward


async def request_of(steward: Steward, password: str = PASSWORD) -> dict[str, Any]:
    """Return the registration of the job file."""
    flags = {"password": password}
    job = await steward.post("/v1/jobs/parse", {"JobHCL": SOURCE, "VariableFlags": flags})
    return {
        "Job": job,
        "Submission": {"Source": SOURCE, "Format": "hcl2", "VariableFlags": flags},
    }


async def registered(steward: Steward) -> str:
    """Run the job to its end; return its allocation."""
    await steward.post("/v1/jobs", await request_of(steward))
    (allocation,) = await steward.allocations("talks", "complete")
    return str(allocation["ID"])


def routes(alloc_id: str) -> dict[str, bool]:
    """Return requests that show the job, and whether they show its definition."""
    return {
        "/v1/job/talks": True,
        "/v1/job/talks/versions": True,
        "/v1/job/talks/versions?diffs=true": True,
        "/v1/job/talks/submission?version=0": True,
        "/v1/job/talks/definition": True,
        f"/v1/allocation/{alloc_id}": False,
    }


async def test_callers_without_submit_job_see_masks(guarded: Steward) -> None:
    alloc_id = await registered(guarded)
    reader = await new_token(guarded, READS)
    writer = await new_token(guarded, WRITES, "writer")
    for _ in range(2):
        for route, is_definition in routes(alloc_id).items():
            answer = await as_(guarded, reader, "GET", route)
            plain = await as_(guarded, writer, "GET", route)
            assert answer.status_code == plain.status_code == 200, route
            assert "ssw0rd" not in answer.text, route
            assert "masked" in answer.text, route
            assert ("ssw0rd" in plain.text) is is_definition, route
            answer.json()  # the masks keep it valid
            if is_definition:
                assert len(answer.content) == len(plain.content), route
        await guarded.kill_and_restart()


async def test_neither_filters_nor_searches_reveal_values(guarded: Steward) -> None:
    request = await request_of(guarded)
    job = request["Job"]
    job |= {"Name": f"talks {PASSWORD}", "Meta": {"KEY": PASSWORD}}
    job["TaskGroups"][0]["Tasks"][0]["Config"]["command"] = f"/no/such/{PASSWORD}"
    await guarded.post("/v1/jobs", request)
    reader = await new_token(guarded, READS)
    writer = await new_token(guarded, WRITES, "writer")
    filters = {
        'Meta.KEY contains "ssw0rd"': False,
        'Meta.KEY matches "masked"': True,
        'Name contains "ssw0rd"': False,
        'any TaskGroups as g { any g.Tasks as t { t.Env.LOGIN matches "ssw0rd" } }': False,
        'ID == "talks"': True,
    }
    for text, is_match in filters.items():
        for path in ("jobs", "jobs/statuses", "job/talks/versions"):
            route = f"/v1/{path}?{urlencode({'filter': text})}"
            shown = await as_(guarded, reader, "GET", route)
            assert shown.status_code == 200, route
            assert ('"talks"' in shown.text) is is_match, route
            assert "ssw0rd" not in shown.text, route
    # A writer sees the definition unmasked, and filters what it sees.
    route = f"/v1/job/talks/versions?{urlencode({'filter': next(iter(filters))})}"
    assert '"talks"' in (await as_(guarded, writer, "GET", route)).text
    for text, is_match in {"ssw0rd": False, "/no/such": True, "talks": True}.items():
        body = {"Text": text, "Context": "jobs"}
        shown = await as_(guarded, reader, "POST", "/v1/search/fuzzy", body)
        assert ('"talks"' in shown.text) is is_match, text
        assert "ssw0rd" not in shown.text, text


async def test_output_and_events_are_masked(guarded: Steward) -> None:
    alloc_id = await registered(guarded)
    writer = await new_token(guarded, WRITES, "writer")
    route = f"/v1/client/fs/logs/{alloc_id}?task=main&type=stdout&plain=true"
    answer = await as_(guarded, writer, "GET", route)
    assert answer.text == "not secret at all:‹masked***********›"
    seen = b""
    async with open_stream(guarded, "/v1/event/stream", index=1) as stream:
        while not (b"AllocationUpdated" in seen and b"JobRegistered" in seen):
            seen += await stream.line()
    assert b"ssw0rd" not in seen
    assert "‹masked".encode() in seen


@pytest.mark.parametrize(
    "config",
    [
        {"command": "/bin/sh", "args": ["-c", 'printf "%s" "$LOGIN" >&2; exit 3']},
        {"command": f"/no/such/{PASSWORD}"},
        {"command": "/bin/sh", "work_dir": f"/no/such/{PASSWORD}"},
    ],
    ids=["output", "command", "directory"],
)
async def test_neither_notifications_nor_the_audit_log_show_values(
    guarded: Steward, config: dict[str, Any]
) -> None:
    signing = "whsec_" + base64.b64encode(bytes(32)).decode()
    await guarded.post("/v1/var/steward/notify", {"Items": {"secret": signing}})
    request = await request_of(guarded)
    task = request["Job"]["TaskGroups"][0]["Tasks"][0]
    task |= {"Config": config, "RestartPolicy": {"Attempts": 0, "Mode": "fail"}}
    group = request["Job"]["TaskGroups"][0]
    group |= {
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
    }
    async with open_receiver() as receiver:
        request["Job"]["Meta"] = {"steward_notify_webhook": receiver.url}
        await guarded.post("/v1/jobs", request)
        (alloc,) = await guarded.allocations("talks", "failed")
        (told,) = await receiver.until(1)
    await as_(guarded, "wrong " + PASSWORD[:3], "GET", "/v1/jobs")
    command = f"/v1/client/allocation/{alloc['ID']}/signal"
    await guarded.request("POST", command, {"Signal": PASSWORD, "TaskName": "main"})
    kept = await guarded.get("/v1/job/talks/notifications")
    audited = await guarded.request("GET", "/v1/operator/audit")
    assert "ssw0rd" not in told.body.decode()
    assert "ssw0rd" not in str(kept)
    assert "ssw0rd" not in audited.text
    assert "/v1/jobs" in audited.text
    assert "masked" in told.body.decode()


async def test_the_audit_entry_of_an_exec_session_shows_no_value(guarded: Steward) -> None:
    request = await request_of(guarded)
    task = request["Job"]["TaskGroups"][0]["Tasks"][0]
    task["Config"] = {"command": "/bin/sleep", "args": ["1000"]}
    await guarded.post("/v1/jobs", request)
    (alloc,) = await guarded.allocations("talks", "running")
    path = f"/v1/client/allocation/{alloc['ID']}/exec"
    words = ["/bin/echo", f"-u={PASSWORD}", "all of it"]
    query = {"task": "main", "command": json.dumps(words)}
    headers = [(b"x-nomad-token", SECRET.encode())]
    async with talk(guarded.address, path, headers=headers, **query) as socket:
        await socket.all()
    entries = [entry for entry in await guarded.get("/v1/operator/audit") if entry["Path"] == path]
    (done,) = (dict(parse_qsl(entry["Query"])) for entry in entries)
    shown = json.loads(done["command"])
    assert (shown[0], shown[2]) == ("/bin/echo", "all of it")
    assert shown[1].startswith("-u=‹masked")
    assert "ssw0rd" not in str(entries)


async def test_differences_of_a_plan_are_masked(guarded: Steward) -> None:
    await registered(guarded)
    body = {**await request_of(guarded, OTHER), "Diff": True}
    answer = await guarded.request("POST", "/v1/job/talks/plan", body)
    assert answer.status_code == 200
    assert "ssw0rd" not in answer.text
    assert OTHER not in answer.text
    assert answer.text.count("masked") == 2
    assert answer.json()["Diff"]["Type"] == "Edited"


async def test_submitted_mask_is_refused(guarded: Steward) -> None:
    await registered(guarded)
    reader = await new_token(guarded, READS)
    found = (await as_(guarded, reader, "GET", "/v1/job/talks")).json()
    answer = await guarded.request("POST", "/v1/jobs", {"Job": found})
    assert answer.status_code == 400
    assert "has a mask" in answer.text


async def test_unknown_values_are_a_warning(guarded: Steward) -> None:
    request = await request_of(guarded)
    del request["Submission"]["VariableFlags"]
    answer = await guarded.post("/v1/jobs", request)
    assert "sensitive variables are not masked" in answer["Warnings"]


async def test_children_and_later_versions_are_masked(guarded: Steward) -> None:
    request = await request_of(guarded)
    request["Job"]["ParameterizedJob"] = {}
    await guarded.post("/v1/jobs", request)
    child = (await guarded.post("/v1/job/talks/dispatch", {}))["DispatchedJobID"]
    (allocation,) = await guarded.allocations(child.replace("/", "%2F"), "complete")
    reader = await new_token(guarded, READS)
    route = f"/v1/client/fs/logs/{allocation['ID']}?task=main&type=stdout&plain=true"
    assert "ssw0rd" not in (await as_(guarded, reader, "GET", route)).text
    answer = await as_(guarded, reader, "GET", f"/v1/job/{child.replace('/', '%2F')}")
    assert "ssw0rd" not in answer.text


HOSTILE = """
variable "x" {
  default   = "\\"ModifyIndex\\":"
  sensitive = true
}

variable "y" {
  default   = "EvalStatus"
  sensitive = true
}

variable "guess" {
  default   = "another one for later"
  sensitive = true
}
"""


async def test_values_of_a_job_change_no_response_about_others(guarded: Steward) -> None:
    created = await guarded.request("POST", "/v1/namespace", {"Name": "apart"})
    assert created.status_code == 200
    job = {"ID": "hostile", "Type": "batch", "Namespace": "apart", "TaskGroups": [GROUP]}
    request = {"Job": job, "Submission": {"Source": HOSTILE, "Format": "hcl2"}}
    route = "/v1/jobs?namespace=apart"
    assert (await guarded.request("POST", route, request)).status_code == 200
    plain = request_of_plain("talks", OTHER)
    await guarded.post("/v1/jobs", plain)
    reader = await new_token(guarded, 'namespace "*" { policy = "read" }')
    for path in ("job/talks", "jobs?namespace=*&meta=true", "evaluations?namespace=*"):
        for token in (reader, SECRET):
            answer = await as_(guarded, token, "GET", f"/v1/{path}")
            assert "masked" not in answer.text, path
            answer.json()
    answer = await as_(guarded, reader, "GET", "/v1/job/talks")
    assert answer.json()["Meta"] == {"KEY": OTHER}
    answer = await as_(guarded, reader, "GET", "/v1/job/hostile?namespace=apart")
    assert answer.json()["ModifyIndex"] > 0


@pytest.mark.parametrize(
    ("default", "found"),
    [
        ('"' + 70_000 * "x" + '"', "1 values, in total 70000 bytes"),
        (
            str([f"value {n:04d}" for n in range(101)]).replace("'", '"'),
            "101 values, in total 1010 bytes",
        ),
    ],
)
@pytest.mark.parametrize("route", ["/v1/jobs", "/v1/job/talks/plan"])
async def test_too_many_values_are_refused(
    guarded: Steward, default: str, found: str, route: str
) -> None:
    source = f'variable "x" {{\n  default = {default}\n  sensitive = true\n}}'
    request = {**request_of_plain("talks"), "Submission": {"Source": source, "Format": "hcl2"}}
    answer = await guarded.request("POST", route, request)
    assert answer.status_code == 400
    assert "Submission" in answer.text
    assert found in answer.text
    assert "at most 100 values and 65536 bytes are allowed" in answer.text


GROUP = {
    "Name": "main",
    "Tasks": [{"Name": "main", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}],
}


def request_of_plain(job_id: str, value: str = "") -> dict[str, Any]:
    """Return the registration of a job without sensitive variables."""
    job = {"ID": job_id, "Type": "batch", "TaskGroups": [GROUP], "Meta": {"KEY": value}}
    return {"Job": job}
