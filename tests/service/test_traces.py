"""Traces of the real daemon: one tree from the request to the end of the task."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio

from tests.fakes.collector import Collector, Span, metrics_of, open_collector
from tests.http_clients import trusted
from tests.service.daemon import Steward, open_steward
from tests.service.test_acl import SECRET
from tests.service.test_imports import below, imported
from tests.time_limits import HAPPENS_WITHIN

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "order-17"}


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with open_collector() as one:
        yield one


@pytest.fixture
async def steward(tmp_path: Path, collector: Collector) -> AsyncIterator[Steward]:
    settings = tmp_path / "steward.toml"
    settings.write_text(
        f'otlp_url = "{collector.url}"\notlp_metrics_seconds = 1\nartifact_paths = ["{tmp_path}"]\n'
    )
    flags = ("--dev", "--log-format", "json", "--config", str(settings))
    async with open_steward(tmp_path, *flags) as one:
        yield one


async def ask(steward: Steward, path: str, body: object) -> httpx.Response:
    async with httpx.AsyncClient(verify=trusted(), timeout=HAPPENS_WITHIN) as client:
        answer = await client.post(
            f"{steward.address}{path}", content=msgspec.json.encode(body), headers=TRACED
        )
    assert answer.is_success, answer.text
    return answer


def job(job_id: str, script: str, **more: object) -> dict[str, Any]:
    config = {"command": "/bin/sh", "args": ["-c", script]}
    task = {"Name": "main", "Driver": "raw_exec", "Config": config}
    group = {"Name": "group", "Tasks": [task], "RestartPolicy": {"Attempts": 0, "Mode": "fail"}}
    return {"ID": job_id, "Type": "batch", "TaskGroups": [group], **more}


def named(spans: list[Span], name: str, trace_id: str = TRACE) -> Span | None:
    return next((span for span in spans if (span.name, span.trace_id) == (name, trace_id)), None)


def path_to_root(span: Span, spans: list[Span]) -> list[str]:
    """Return the names of a span and of all its ancestors."""
    by_id = {span.span_id: span for span in spans}
    names = [span.name]
    while (parent := by_id.get(str(span.parent_span_id))) is not None:
        span = parent
        names.append(span.name)
    return names


async def test_job_is_one_tree_from_the_request_to_its_end(
    steward: Steward, collector: Collector, tmp_path: Path
) -> None:
    (source := tmp_path / "input").write_text("content")
    made = job("once", 'echo "$TRACEPARENT"')
    (task,) = made["TaskGroups"][0]["Tasks"]
    task["Artifacts"] = [{"GetterSource": str(source), "RelativeDest": "local/"}]
    answer = await ask(steward, "/v1/jobs", {"Job": made})
    assert answer.headers["traceparent"].startswith(f"00-{TRACE}-")
    (allocation,) = await steward.allocations("once", "complete", "failed")
    await collector.until(lambda spans: named(spans, "allocation"))
    request = await collector.until(lambda spans: named(spans, "POST /v1/jobs"))
    spans = [span for span in collector.spans() if span.trace_id == TRACE]
    assert request.parent_span_id == PARENT
    assert request.about["steward.request_id"] == "order-17"
    ran, start, plan = (named(spans, name) for name in ("task main", "start", "plan"))
    assert ran is not None
    assert start is not None
    assert plan is not None
    above = ["allocation", "write", "placement", "evaluation", "write", "POST /v1/jobs"]
    assert path_to_root(start, spans) == ["start", "task main", *above]
    assert path_to_root(plan, spans) == ["plan", *above[3:]]
    brought = named(spans, "artifacts")
    assert brought is not None
    assert path_to_root(brought, spans) == ["artifacts", "task main", *above]
    ended = named(spans, "allocation")
    assert ended is not None
    assert ended.about["steward.allocation"] == allocation["ID"]
    # The task continues the trace.
    log = await steward.request(
        "GET", f"/v1/client/fs/logs/{allocation['ID']}", task="main", type="stdout", plain="true"
    )
    assert log.text.strip() == f"00-{TRACE}-{ran.span_id}-01"


async def test_log_lines_have_the_trace(steward: Steward, collector: Collector) -> None:
    await ask(steward, "/v1/jobs", {"Job": job("once", "true")})
    await steward.allocations("once", "complete")
    await collector.until(lambda spans: named(spans, "allocation"))  # the last log line precedes it
    lines = [json.loads(line) for line in steward.log.read_text().splitlines()]
    mine = [line for line in lines if line.get("request_id") == "order-17"]
    assert {"evals", "runner"} <= {line["part"].partition(".")[0] for line in mine}
    assert {line.get("trace_id") for line in mine} == {TRACE}


async def test_trace_of_a_service_continues_in_the_next_daemon(
    steward: Steward, collector: Collector
) -> None:
    made = job("web", "exec sleep 600", Type="service")
    made["TaskGroups"][0]["Update"] = {"MinHealthyTime": 1_000_000, "HealthyDeadline": 10**10}
    await ask(steward, "/v1/jobs", {"Job": made})
    healthy = await collector.until(lambda spans: named(spans, "first health"))
    await steward.kill_and_restart()
    assert named(collector.spans(), "allocation") is None
    await steward.delete("/v1/job/web")
    ended = await collector.until(lambda spans: named(spans, "allocation"))
    assert healthy.parent_span_id == ended.span_id
    ran = await collector.until(lambda spans: named(spans, "task main"))
    assert ran.parent_span_id == ended.span_id


async def test_children_of_a_bulk_dispatch_have_traces_with_a_link(
    steward: Steward, collector: Collector
) -> None:
    parent = job("each", "true", ParameterizedJob={"Payload": "optional"})
    await steward.register(parent)
    async with httpx.AsyncClient(verify=trusted(), timeout=HAPPENS_WITHIN) as client:
        answer = await client.post(
            f"{steward.address}/v1/job/each/dispatch/bulk", content="{}\n{}\n", headers=TRACED
        )
    assert answer.is_success, answer.text
    request = await collector.until(
        lambda spans: next((span for span in spans if "bulk" in span.name), None)
    )
    children = await collector.until(
        lambda spans: (
            found if len(found := [s for s in spans if s.name == "dispatch"]) == 2 else None
        )
    )
    for child in children:
        assert child.trace_id != TRACE
        assert [(link.trace_id, link.span_id) for link in child.links] == [(TRACE, request.span_id)]
        ended = await collector.until(
            lambda spans, trace=child.trace_id: named(spans, "allocation", trace)
        )
        assert path_to_root(ended, collector.spans())[-1] == "dispatch"


async def test_step_of_a_workflow_has_a_link_to_the_steps_that_it_needs(
    steward: Steward, collector: Collector
) -> None:
    made = job("flow", "true")
    (first,) = made["TaskGroups"]
    made["TaskGroups"] = [first, {**first, "Name": "next", "Meta": {"steward_needs": "group"}}]
    await ask(steward, "/v1/jobs", {"Job": made})

    def ended(spans: list[Span]) -> dict[object, Span] | None:
        found = {span.about["steward.group"]: span for span in spans if span.name == "allocation"}
        return found if len(found) == 2 else None

    allocations = await collector.until(ended)
    by_id = {span.span_id: span for span in collector.spans()}

    def links(span: Span) -> list[tuple[str, str]]:
        """Return the links of the evaluation that placed an allocation."""
        while span.name != "evaluation":
            span = by_id[str(span.parent_span_id)]
        return [(link.trace_id, link.span_id) for link in span.links]

    assert links(allocations["next"]) == [(TRACE, allocations["group"].span_id)]
    assert links(allocations["group"]) == []


async def test_child_of_a_dispatch_has_a_trace_with_a_link(
    steward: Steward, collector: Collector
) -> None:
    await steward.register(job("each", "true", ParameterizedJob={"Payload": "optional"}))
    await ask(steward, "/v1/job/each/dispatch", {})
    request = await collector.until(lambda spans: named(spans, "POST /v1/job/{job_id}/dispatch"))
    child = await collector.until(
        lambda spans: next((span for span in spans if span.name == "dispatch"), None)
    )
    assert child.trace_id != TRACE
    assert [(link.trace_id, link.span_id) for link in child.links] == [(TRACE, request.span_id)]
    ended = await collector.until(lambda spans: named(spans, "allocation", child.trace_id))
    assert path_to_root(ended, collector.spans())[-1] == "dispatch"


async def test_session_of_a_task_is_a_span(steward: Steward, collector: Collector) -> None:
    (allocation,) = await steward.run_job(job("talks", "exec sleep 600", Type="service"))
    path = f"/v1/client/allocation/{allocation['ID']}/exec?task=main&command=%5B%22true%22%5D"
    head = {
        **TRACED,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    name = "GET /v1/client/allocation/{alloc_id}/exec"
    # The connection stays open until the session has ended with its command.
    async with (
        httpx.AsyncClient(verify=trusted(), timeout=HAPPENS_WITHIN) as client,
        client.stream("GET", f"{steward.address}{path}", headers=head) as answer,
    ):
        assert answer.status_code == 101
        span = await collector.until(lambda spans: named(spans, name))
    assert span.parent_span_id == PARENT
    assert span.about["http.response.status_code"] == 101


async def test_unauthenticated_requests_create_no_spans(
    tmp_path: Path, collector: Collector
) -> None:
    settings = tmp_path / "steward.toml"
    settings.write_text(f'otlp_url = "{collector.url}"\n')
    async with open_steward(tmp_path, "--dev", "--acl", "--config", str(settings)) as steward:
        await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        asked = {
            "GET": ("/v1/status/leader", "/v1/agent/health", "/v1/sys/health", "/ui/sign-in"),
            "POST": ("/v1/jobs", "/v1/auth/azure/login", "/v1/acl/token/onetime/exchange"),
        }
        async with httpx.AsyncClient(verify=trusted(), timeout=HAPPENS_WITHIN) as client:
            for method, paths in asked.items():
                for path in paths:
                    await client.request(
                        method, f"{steward.address}{path}", content="{}", headers=TRACED
                    )
            known = {**TRACED, "X-Service-Token": SECRET}
            await client.get(f"{steward.address}/v1/jobs", headers=known)
        await collector.until(lambda spans: named(spans, "GET /v1/jobs"))
        found = [span.name for span in collector.spans() if span.trace_id == TRACE]
        assert found == ["GET /v1/jobs"]


async def test_metrics_are_sent(steward: Steward, collector: Collector) -> None:
    with trio.fail_after(HAPPENS_WITHIN):
        while not collector.requests("/v1/metrics"):
            await collector.receiver.until(len(collector.receiver.received) + 1)
    found = metrics_of(collector.requests("/v1/metrics")[0].body)
    assert "nomad.client.allocations.running" in found
    assert steward.address


async def test_daemon_without_a_receiver_imports_nothing_of_otlp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONVERBOSE", "1")
    async with open_steward(tmp_path, "--dev", executed=True) as steward:
        answer = await ask(steward, "/v1/jobs", {"Job": job("once", 'echo "[$TRACEPARENT]"')})
        assert "traceparent" not in answer.headers
        (allocation,) = await steward.allocations("once", "complete")
        log = await steward.request(
            "GET",
            f"/v1/client/fs/logs/{allocation['ID']}",
            task="main",
            type="stdout",
            plain="true",
        )
        assert log.text.strip() == "[]"
        assert below(imported(steward), ("daemon.otlp",)) == set()
