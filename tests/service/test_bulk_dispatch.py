"""Many children with one request: streamed answers, errors by line, and a kill in the middle."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from daemon.jobs.bulk_dispatch import BATCH
from tests.http_clients import trusted
from tests.service.daemon import Steward, open_steward
from tests.time_limits import HAPPENS_WITHIN

PARENT = {
    "ID": "many",
    "Type": "batch",
    "ParameterizedJob": {"Payload": "optional", "MetaRequired": ["n"]},
    "TaskGroups": [
        {
            "Name": "g",
            "Tasks": [
                {
                    "Name": "t",
                    "Driver": "raw_exec",
                    "Config": {"command": "/bin/true"},
                    "Resources": {"CPU": 1, "MemoryMB": 10},
                }
            ],
        }
    ],
}
PATH = "/v1/job/many/dispatch/bulk"
# A client that is cut off during a request leaves a generator of the HTTP library to the GC.
CUT_OFF = pytest.mark.filterwarnings(
    "ignore:.*ByteStream.__aiter__:pytest.PytestUnraisableExceptionWarning"
)


def lines(number: int) -> bytes:
    return b"".join(b'{"Meta": {"n": "%d"}}\n' % number for number in range(number))


async def answers(steward: Steward, body: bytes, **query: str) -> list[dict[str, Any]]:
    """Send lines and return the answers to them."""
    async with httpx.AsyncClient(verify=trusted(), timeout=HAPPENS_WITHIN) as client:
        reply = await client.post(
            f"{steward.address}{PATH}",
            content=body,
            params=query,
            headers={"X-Service-Token": steward.token} if steward.token else None,
        )
    assert (reply.status_code, reply.headers["Content-Type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in reply.text.splitlines()]


async def test_each_line_becomes_a_child_that_runs(steward: Steward) -> None:
    await steward.register(PARENT)
    found = await answers(steward, lines(40) + b"{}\n" + lines(1), first_line="11")
    assert [answer["Line"] for answer in found] == list(range(11, 53))
    (bad,) = [answer for answer in found if "Error" in answer]
    assert (bad["Line"], bad["Field"]) == (51, "Meta")
    summary = await steward.until(
        "/v1/job/many/summary", lambda shown: shown["Children"]["Dead"] == 41
    )
    assert summary["Children"] == {"Pending": 0, "Running": 0, "Dead": 41}
    child = await steward.get(f"/v1/job/{found[7]['DispatchedJobID'].replace('/', '%2F')}")
    assert (child["Meta"]["n"], child["ParentID"]) == ("7", "many")


REFUSED = (
    ("/v1/job/none/dispatch/bulk", {}, b"{}", 404, 'job "none" not found'),
    (PATH, {"first_line": "0"}, b"{}", 400, 'first_line is "0"'),
    (PATH, {}, b"", 400, "one JSON object per line"),
    (PATH, {}, b"{}\n" * 10_001, 413, "more than 10000 lines"),
)


async def test_invalid_bulk_request_is_refused_as_a_whole(steward: Steward) -> None:
    await steward.register(PARENT)
    async with httpx.AsyncClient(verify=trusted(), timeout=HAPPENS_WITHIN) as client:
        for path, query, body, status, text in REFUSED:
            reply = await client.post(f"{steward.address}{path}", content=body, params=query)
            assert (reply.status_code, text in reply.text) == (status, True)


async def test_bulk_dispatch_needs_the_capability_and_is_audited(tmp_path: Path) -> None:
    async with open_steward(tmp_path) as steward:
        await steward.register({**PARENT, "Meta": {"steward_children_at_once": "1"}})
        root = steward.token
        for name, capability in (("reader", "read-job"), ("sender", "dispatch-job")):
            rules = f'namespace "default" {{ capabilities = ["{capability}"] }}'
            await steward.request("POST", f"/v1/acl/policy/{name}", {"Name": name, "Rules": rules})
            made = await steward.post(
                "/v1/acl/token", {"Name": name, "Type": "client", "Policies": [name]}
            )
            steward.token = made["SecretID"]
            if name == "reader":
                assert (await steward.request("POST", PATH, {})).status_code == 403
            else:
                assert len(await answers(steward, lines(BATCH + 1))) == BATCH + 1
            steward.token = root
        noted = await steward.get("/v1/operator/audit", method="POST")
        found = [
            variable["Status"]
            for variable in noted
            if variable["Path"] == PATH and variable["Status"] == 200
        ]
        assert found == [200]


@CUT_OFF
async def test_kill_during_a_bulk_dispatch_loses_no_answered_line(steward: Steward) -> None:
    await steward.register({**PARENT, "Meta": {"steward_children_at_once": "1"}})
    number = 8 * BATCH
    answered: list[dict[str, Any]] = []

    async def send_until_killed() -> None:
        async with (
            httpx.AsyncClient(verify=trusted(), timeout=HAPPENS_WITHIN) as client,
            client.stream(
                "POST",
                f"{steward.address}{PATH}",
                content=lines(number),
                params={"idempotency_token": "once"},
            ) as reply,
        ):
            async for line in reply.aiter_lines():
                answered.append(json.loads(line))
                if len(answered) == BATCH:
                    await steward.kill()

    with pytest.raises(httpx.TransportError):
        await send_until_killed()
    assert BATCH <= len(answered) < number
    await steward.start()
    before = {item["ID"] for item in await steward.get("/v1/jobs", prefix="many/")}
    assert {item["DispatchedJobID"] for item in answered} <= before
    again = await answers(steward, lines(number), idempotency_token="once")
    assert [answer["DispatchedJobID"] for answer in again[: len(answered)]] == [
        item["DispatchedJobID"] for item in answered
    ]
    assert {answer["DispatchedJobID"] for answer in again if answer.get("Existed")} == before
    assert len({answer["DispatchedJobID"] for answer in again}) == number


async def test_the_command_sends_a_file(steward: Steward) -> None:
    await steward.register({**PARENT, "Meta": {"steward_children_at_once": "1"}})
    file = steward.directory / "lines"
    file.write_bytes(lines(1200) + b'{"Meta": {}}\n')
    words = ("job", "dispatch", "--from", str(file), "--idempotency-token", "file", "many")
    done = await steward.cli(*words)
    assert (done.returncode, done.stdout) == (
        2,
        b'job "many": 1200 dispatched, 1199 of them queued, 1 failed\n',
    )
    assert done.stderr.startswith(b"line 1201: Meta: Dispatch did not provide required meta keys")
    again = await steward.cli(*words)
    assert again.stdout == b'job "many": 0 dispatched, 1200 dispatched before, 1 failed\n'
