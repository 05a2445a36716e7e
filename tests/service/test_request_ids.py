"""The request ID: in the response, and in the log for all consequences of the request."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio

from tests.service.daemon import Steward, open_steward
from tests.time_limits import HAPPENS_WITHIN


@pytest.fixture
async def steward(tmp_path: Path) -> AsyncIterator[Steward]:
    async with open_steward(tmp_path, "--dev", "--log-format", "json") as one:
        yield one


async def ask(
    steward: Steward, request_id: str, method: str, path: str, body: object = None
) -> str:
    """Send a request with this request ID; return the request ID of the response."""
    async with httpx.AsyncClient(timeout=HAPPENS_WITHIN) as client:
        answer = await client.request(
            method,
            f"{steward.address}{path}",
            content=msgspec.json.encode(body),
            headers={"X-Request-Id": request_id},
        )
    assert answer.is_success, answer.text
    return str(answer.headers["X-Request-Id"])


async def logged(steward: Steward, request_id: str, last: str) -> list[Any]:
    """Return the log lines of a request as soon as one of them has the event `last`."""
    with trio.fail_after(HAPPENS_WITHIN):
        while True:
            whole = steward.log.read_text().rpartition("\n")[0]
            found = [json.loads(line) for line in whole.splitlines()]
            mine = [line for line in found if line.get("request_id") == request_id]
            if any(line.get("event") == last for line in mine):
                return mine
            await trio.sleep(0.05)


async def test_request_id_is_traced_to_its_tasks_across_restarts(steward: Steward) -> None:
    asleep = {"Name": "main", "Driver": "raw_exec", "Config": {"command": "sleep", "args": ["600"]}}
    wanted = {"Job": {"ID": "web", "TaskGroups": [{"Name": "web", "Tasks": [asleep]}]}}
    assert await ask(steward, "order-17", "POST", "/v1/jobs", wanted) == "order-17"
    (placed,) = await steward.allocations("web", "running")
    evaluation, *events = await logged(steward, "order-17", "Started")
    assert (evaluation["part"], evaluation["eval_id"]) == ("evals", placed["EvalID"])
    assert {(line["alloc_id"], line["task"]) for line in events} == {(placed["ID"], "main")}
    # The crash comes after these lines, because an operation that it interrupts may get another ID
    # or no second line.
    await steward.kill_and_restart()
    await ask(steward, "order-18", "DELETE", "/v1/job/web")
    await steward.allocations("web", "complete")
    assert await logged(steward, "order-18", "Killed")


async def test_invalid_request_id_is_replaced(steward: Steward) -> None:
    for unfit in ("a b", "x" * 200, 'a"b'):
        assert await ask(steward, unfit, "GET", "/v1/jobs") != unfit
