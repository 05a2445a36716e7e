"""`steward mcp` as an assistant uses it: a program on a pipe, with the permissions of its token."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.forks import Forked
from tests.service.daemon import Steward, open_steward
from tests.service.test_acl import SECRET, new_token

JOB = """
job "greet" {
  type = "batch"
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/echo"
        args    = ["hello there"]
      }
    }
  }
}
"""
READER = 'namespace "default" { policy = "read" capabilities = ["read-logs", "plan-job"] }'
WRITER = 'namespace "default" { policy = "write" }'


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Steward]:
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        steward.token = SECRET
        yield steward


class Assistant:
    """A client of `steward mcp`."""

    def __init__(self, process: Forked) -> None:
        self._process, self._rest, self._number = process, b"", 0

    async def ask(self, method: str, **params: object) -> Any:
        """Return the result of a request."""
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        await self._process.stdin.send_all(json.dumps(message).encode() + b"\n")
        while b"\n" not in self._rest:
            piece = await self._process.stdout.receive_some()
            assert piece
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)["result"]

    async def use(self, tool: str, **arguments: object) -> tuple[str, bool]:
        """Return the text of a tool, and whether it is an error."""
        found = await self.ask("tools/call", name=tool, arguments=arguments)
        return found["content"][0]["text"], found["isError"]


@asynccontextmanager
async def open_assistant(steward: Steward, token: str, *flags: str) -> AsyncIterator[Assistant]:
    process = await forks.open_process(
        ["mcp", "--address", steward.address, *flags],
        stdin=forks.PIPE,
        stdout=forks.PIPE,
        stderr=forks.DEVNULL,
        env={**os.environ, "STEWARD_TOKEN": token},
    )
    try:
        yield Assistant(process)
    finally:
        await process.aclose()


async def test_ai_assistant_reads_and_plans_without_changes(guarded: Steward) -> None:
    token = await new_token(guarded, READER)
    parsed = await guarded.post("/v1/jobs/parse", {"JobHCL": JOB})
    await guarded.register(parsed)
    await guarded.allocations("greet", "complete")
    async with open_assistant(guarded, token) as assistant:
        await assistant.ask("initialize", protocolVersion="2025-11-25", capabilities={})
        tools = [tool["name"] for tool in (await assistant.ask("tools/list"))["tools"]]
        assert "run_job" not in tools
        listed, failed = await assistant.use("list_jobs")
        assert (failed, "greet" in listed) == (False, True)
        status = json.loads((await assistant.use("job_status", job="greet"))[0])
        assert status["state"]["State"]
        assert status["allocations"][0]["ClientStatus"] == "complete"
        assert not (await assistant.use("explain_job", job="greet"))[1]
        assert "hello there" in (await assistant.use("job_logs", job="greet", lines=5))[0]
        found = json.loads((await assistant.use("job_logs", job="greet", contains="there"))[0])
        assert found["Lines"][0]["Matches"]
        changed = JOB.replace("hello there", "good bye")
        assert "good bye" in (await assistant.use("plan_job", source=changed))[0]
        assert (await assistant.use("job_status", job="none")) == ("job not found", True)
        wrong, failed = await assistant.use("job_logs", job="greet", lines=1000)
        assert (failed, "lines" in wrong) == (True, True)


async def test_writes_need_the_flag_and_permissions_and_are_audited(guarded: Steward) -> None:
    reader = await new_token(guarded, READER)
    writer = await new_token(guarded, WRITER, "writer")
    async with open_assistant(guarded, reader, "--allow-writes") as assistant:
        said, failed = await assistant.use("run_job", source=JOB)
        assert (failed, said.startswith("Permission denied")) == (True, True)
    async with open_assistant(guarded, writer, "--allow-writes") as assistant:
        _, failed = await assistant.use("run_job", source=JOB)
        assert not failed
        await guarded.allocations("greet", "complete")
        assert not (await assistant.use("stop_job", job="greet"))[1]
    wanted = {
        ("POST", "/v1/jobs", "via=mcp", 200),
        ("POST", "/v1/jobs", "via=mcp", 403),
        ("DELETE", "/v1/job/greet", "via=mcp", 200),
    }

    def are_written(entries: Any) -> bool:  # refusals are written a moment later
        made = {
            (entry["Method"], entry["Path"], entry["Query"], entry["Status"]) for entry in entries
        }
        return wanted <= made

    await guarded.until("/v1/operator/audit", are_written)


async def test_reads_are_audited(guarded: Steward) -> None:
    reader = await new_token(guarded, READER)
    async with open_assistant(guarded, reader) as assistant:
        assert not (await assistant.use("list_jobs"))[1]
        assert not (await assistant.use("plan_job", source=JOB))[1]
    entries = await guarded.get("/v1/operator/audit")
    made = {
        (entry["Method"], entry["Path"], entry["Status"])
        for entry in entries
        if "via=mcp" in entry["Query"] and entry["Accessor"]
    }
    assert {("POST", "/v1/jobs/parse", 200), ("POST", "/v1/job/greet/plan", 200)} <= made
    assert any(method == "GET" for method, _, _ in made)
