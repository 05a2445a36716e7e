"""The client reads the recorded responses of Nomad, and sends the recorded requests."""

import json
import re
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import httpx
import msgspec
import pytest
from steward_client import BadRequest, Client, Conflict, EventsLost, Job, NotFound
from steward_client.client import _Head
from steward_client.records import (
    Allocation,
    Deployment,
    Dispatched,
    Evaluation,
    JobDetail,
    JobStub,
    Plan,
    Registered,
    Variable,
)
from steward_client.wire import decode

GOLDEN = Path(__file__).parents[1] / "wire/golden/jobs"
SEGMENT = r"[^/]+"
KINDS: dict[str, object] = {
    "GET /v1/jobs": list[JobStub],
    "POST /v1/jobs": Registered,
    "POST /v1/jobs/parse": _Head,
    f"GET /v1/job/{SEGMENT}": JobDetail,
    f"POST /v1/job/{SEGMENT}": Registered,
    f"DELETE /v1/job/{SEGMENT}": Registered,
    f"POST /v1/job/{SEGMENT}/plan": Plan,
    f"POST /v1/job/{SEGMENT}/dispatch": Dispatched,
    f"GET /v1/job/{SEGMENT}/allocations": list[Allocation],
    f"GET /v1/job/{SEGMENT}/evaluations": list[Evaluation],
    f"GET /v1/job/{SEGMENT}/deployments": list[Deployment],
    f"GET /v1/job/{SEGMENT}/deployment": Deployment,
    f"GET /v1/evaluation/{SEGMENT}": Evaluation,
    f"GET /v1/allocation/{SEGMENT}": Allocation,
    "GET /v1/allocations": list[Allocation],
    "GET /v1/vars": list[Variable],
    "GET /v1/var/.+": Variable,
    "PUT /v1/var/.+": Variable,
}


def steps() -> Iterator[tuple[str, dict[str, object], dict[str, object]]]:
    for file in sorted(GOLDEN.glob("*.json")):
        for step in json.loads(file.read_text())["steps"]:
            if "request" in step and "response" in step:
                yield step["id"], step["request"], step["response"]


def recorded(kind: str) -> list[object]:
    """Return the recorded bodies of successful responses of an endpoint."""
    return [
        given["body"]
        for _, asked, given in steps()
        if re.fullmatch(kind, f"{asked['method']} {asked['path']}")
        and given["status"] == 200
        and isinstance(given.get("body"), dict | list)
    ]


def with_numbers(body: object) -> bytes:
    """Return a body as JSON, with numbers in place of the recording's placeholders of indexes."""
    return re.sub(r'("\w*Index": )"\{\{\w+\}\}"', r"\g<1>12", json.dumps(body)).encode()


@pytest.mark.parametrize("kind", KINDS)
def test_every_recorded_response_is_read(kind: str) -> None:
    bodies = recorded(kind)
    assert bodies
    for body in bodies:
        decode(with_numbers(body), KINDS[kind])


async def test_recorded_event_is_read_with_its_job() -> None:
    steps_of = json.loads((GOLDEN / "event-stream.json").read_text())["steps"]
    text = next(step["response"]["body"] for step in steps_of if step.get("join") == "e1")
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=text))
    async with (
        Client("http://nomad", transport=transport) as client,
        aclosing(client.events({"Job": "g-es"})) as events,
    ):
        event = await anext(events)
    assert (event.topic, event.type, event.index) == ("Job", "JobRegistered", 1298)
    assert event.job is not None
    assert (event.job.id, event.job.datacenters) == ("g-es", ["dc1"])


def answering(scenario: str, number: int) -> Client:
    """Return a client whose server gives one recorded answer."""
    _, _, given = next(step for step in steps() if step[0] == f"{scenario}/{number:02}")
    body = given.get("body", "")
    content = with_numbers(body) if not isinstance(body, str) else body.encode()

    def handler(request: httpx.Request) -> httpx.Response:
        headers = {name: text for name, text in given["headers"].items() if name.startswith("X-")}
        return httpx.Response(given["status"], headers=headers, content=content)

    return Client("http://nomad", transport=httpx.MockTransport(handler))


def recorded_step(scenario: str, method: str, path: str, status: int) -> int:
    """Return the number of the first step with such a request and status."""
    return next(
        int(name.rpartition("/")[2])
        for name, asked, given in steps()
        if name.startswith(f"{scenario}/")
        and (asked["method"], given["status"]) == (method, status)
        and re.fullmatch(path, asked["path"])
    )


async def test_result_of_a_recorded_batch_job_has_exit_codes() -> None:
    steps_of = recorded("GET /v1/job/g-batch/allocations")
    allocations = decode(with_numbers(steps_of[0]), list[Allocation])
    assert [alloc.task_states["main"].exit_code for alloc in allocations] == [0, 0]
    assert {alloc.client_status for alloc in allocations} == {"complete"}


async def test_recorded_plan_has_the_placements() -> None:
    number = recorded_step("plan", "POST", r".*/plan", 200)
    async with answering("plan", number) as client:
        plan = await client.plan(Job(id="g-pl", groups=[]))
    assert plan.annotations.desired_updates["web"].place == 2
    assert (plan.diff.type, plan.diff.groups[0].name) == ("Added", "web")


async def test_recorded_parse_keeps_the_whole_document() -> None:
    number = recorded_step("parse", "POST", "/v1/jobs/parse", 200)
    async with answering("parse", number) as client:
        parsed = await client.parse("job")
    _, _, given = next(step for step in steps() if step[0] == f"parse/{number:02}")
    assert msgspec.json.decode(parsed.document) == json.loads(with_numbers(given["body"]))
    assert parsed.id == given["body"]["ID"]


async def test_recorded_lock_conflict_is_a_conflict() -> None:
    number = recorded_step("variable-locks", "PUT", "/v1/var/g2/lock/a", 409)
    async with answering("variable-locks", number) as client:
        with pytest.raises(Conflict):
            await client.put_variable("g2/lock/a", {"k": "w"})


@pytest.mark.parametrize(
    ("scenario", "path", "status", "error"),
    [
        ("dispatch", ".*/dispatch", 400, BadRequest),
        ("http-basics", "/v1/job/.*", 404, NotFound),
    ],
)
async def test_recorded_refusals_become_the_matching_errors(
    scenario: str, path: str, status: int, error: type[Exception]
) -> None:
    number = next(
        int(name.rpartition("/")[2])
        for name, asked, given in steps()
        if name.startswith(f"{scenario}/")
        and given["status"] == status
        and re.fullmatch(path, asked["path"])
    )
    async with answering(scenario, number) as client:
        with pytest.raises(error):
            await client.dispatch("g-par")


async def test_gap_in_events_is_an_error() -> None:
    gap = {"Gap": {"FirstIndex": 1, "LastIndex": 9}}
    event = {"Topic": "Gap", "Type": "EventsCollected", "Index": 9, "Payload": gap}
    body = json.dumps({"Index": 9, "Events": [event]}) + "\n"
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=body))
    async with Client("http://nomad", transport=transport) as client:
        with pytest.raises(EventsLost, match="1 to 9"):
            await anext(client.events(index=1))
