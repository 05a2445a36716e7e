"""Every field of a check, and the gRPC health checking protocol."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon.net.http_client import allow_all
from daemon.runner.core.task_script import ScriptResult
from daemon.runner.services.checks import CheckRunner, run_check
from daemon.runner.services.registrations import CheckTarget, ServiceContext, active, probes
from storage.records.allocation import (
    AllocatedPort,
    AllocatedResources,
    AllocatedShared,
    Placement,
    TaskPhase,
    TaskState,
)
from storage.records.base import SECOND
from storage.records.evaluation import PlacementMetric
from storage.records.service import CheckStatus
from storage.records.task import Check, CheckRestart, Service
from tests.parts.runner.endpoints import Health, listening, message, nothing_runs, probe
from tests.parts.runner.world import script, service
from tests.unit.runner.placements import placed

PENDING, SUCCESS, FAILURE = CheckStatus.PENDING, CheckStatus.SUCCESS, CheckStatus.FAILURE


# ---- requests of checks ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, b"GET / HTTP/1.1\r\n"),
        ({"path": "/health?deep=1"}, b"GET /health?deep=1 HTTP/1.1\r\n"),
        ({"method": "POST"}, b"POST / HTTP/1.1\r\n"),
        ({"method": "POST", "body": "are you well"}, b"\r\n\r\nare you well"),
        ({"method": "POST", "body": "1234"}, b"content-length: 4\r\n"),
        ({"header": {"X-Ask": ["a", "b"]}}, b"X-Ask: a\r\nX-Ask: b\r\n"),
        ({"header": {"Host": ["web.example"]}}, b"Host: web.example\r\n"),
    ],
)
async def test_http_check_sends_the_configured_request(fields: Any, sent: bytes) -> None:
    heard = []

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            heard.append(bytes(await stream.receive_some()))
            await stream.send_all(b"HTTP/1.1 204 x\r\n\r\n")

    async with listening(serve) as port:
        found = await run_check(probe("http", port, **fields), nothing_runs, allow_all)
    assert found == (SUCCESS, 204, "nomad: http ok")
    assert sent.lower() in heard[0].lower()


def place(**port: Any) -> ServiceContext:
    """Return an allocation that has two ports."""
    held = [
        AllocatedPort(label="http", value=20100, to=8080, host_ip="10.0.0.1"),
        AllocatedPort(label="admin", value=20200, to=9090, host_ip="10.0.0.1"),
    ]
    resources = AllocatedResources(tasks={}, task_lifecycles={}, shared=AllocatedShared(ports=held))
    job = service(script("x"), services=[Service(name="web", provider="nomad", **port)])
    allocation = placed(
        job,
        "node",
        "alloc",
        placement=Placement(resources=resources, metrics=PlacementMetric(), node_name="node-1"),
    )
    (group,) = job.task_groups or ()
    return ServiceContext(
        allocation=allocation,
        group=group,
        datacenter="dc1",
        address="192.0.2.1",
        resolve=lambda task, text: text,
    )


@pytest.mark.parametrize(
    ("given", "check", "address"),
    [
        ({}, {}, ("10.0.0.1", 20100)),
        ({}, {"port_label": "admin"}, ("10.0.0.1", 20200)),
        ({}, {"port_label": "7000"}, ("192.0.2.1", 7000)),
        ({}, {"address_mode": "alloc"}, ("10.0.0.1", 8080)),
        ({"address_mode": "alloc"}, {}, ("10.0.0.1", 8080)),
        ({"address_mode": "alloc"}, {"address_mode": "host"}, ("10.0.0.1", 20100)),
        ({"address": "web.example"}, {}, ("web.example", 20100)),
    ],
)
def test_check_uses_its_port_and_address_mode(
    given: Any, check: Any, address: tuple[str, int]
) -> None:
    there = place(port_label="http", checks=[Check(name="c", type="tcp", **check)], **given)
    states = {"main": TaskState(state=TaskPhase.RUNNING, started_at="2026-01-01T00:00:00Z")}
    found = next(probes(there, active(there, states)))
    assert (found.address, found.port) == address


def test_check_of_a_bridge_group_uses_its_bridge_address() -> None:
    mode = {"address_mode": "alloc"}
    for label, port in (("http", 8080), ("7000", 7000)):
        made = place(port_label=label, checks=[Check(name="c", type="tcp")], **mode)
        there = msgspec.structs.replace(made, inside="172.26.64.2")
        states = {"main": TaskState(state=TaskPhase.RUNNING, started_at="2026-01-01T00:00:00Z")}
        (one,) = probes(there, active(there, states))
        assert (one.address, one.port) == ("172.26.64.2", port)


def test_check_uses_the_address_of_the_service() -> None:
    there = msgspec.structs.replace(
        place(port_label="http", address="${meta.ip}", checks=[Check(name="c", type="tcp")]),
        resolve=lambda task, text: text.replace("${meta.ip}", "192.0.2.9"),
    )
    states = {"main": TaskState(state=TaskPhase.RUNNING, started_at="2026-01-01T00:00:00Z")}
    found = list(active(there, states))
    assert [item.registration.address for item in found] == ["192.0.2.9"]
    assert [probe.address for probe in probes(there, found)] == ["192.0.2.9"]


def test_references_in_a_check_are_resolved() -> None:
    check = Check(
        name="${x} alive",
        type="http",
        command="/bin/${x}",
        args=["-${x}"],
        path="/${x}",
        port_label="${label}",
        method="${x}",
        grpc_service="${x}.health",
        header={"X-${x}": ["for ${x}"]},
        body="${x}",
    )
    there = msgspec.structs.replace(
        place(port_label="${label}", checks=[check, Check(name="c", type="tcp")]),
        resolve=lambda task, text: text.replace("${x}", "web").replace("${label}", "admin"),
    )
    states = {"main": TaskState(state=TaskPhase.RUNNING, started_at="2026-01-01T00:00:00Z")}
    found = list(active(there, states))
    assert [item.registration.port for item in found] == [20200]
    resolved, other = probes(there, found)
    assert resolved.check == Check(
        name="web alive",
        type="http",
        command="/bin/web",
        args=["-web"],
        path="/web",
        port_label="admin",
        method="web",
        grpc_service="web.health",
        header={"X-web": ["for web"]},
        body="${x}",  # Nomad does not resolve it either
    )
    assert (resolved.port, other.port) == (20200, 20200)


# ---- intervals and results ---------------------------------------------------------------------------


class Asked:
    """Script checks with a prepared list of exit statuses, and the times of the checks."""

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)
        self.moments: list[float] = []
        self.seen: list[CheckStatus] = []
        self.restarts: list[tuple[float, str]] = []
        self.over = trio.Event()

    async def run(self, check_target: CheckTarget) -> None:
        began = trio.current_time()

        async def answer(task: str, command: Sequence[str]) -> ScriptResult:
            self.moments.append(trio.current_time() - began)
            self.seen.append(checks.results[0].status)
            if not self._codes:
                self.over.set()
                await trio.sleep_forever()
            return ScriptResult(self._codes.pop(0), "")

        def restart(task: str, why: str) -> None:
            self.restarts.append((trio.current_time() - began, task))

        def now() -> int:
            return int((trio.current_time() - began) * SECOND)

        checks = CheckRunner("a", now, lambda: None, restart, answer, allow_all)
        async with trio.open_nursery() as nursery:
            checks.follow([check_target], nursery)
            await self.over.wait()
            nursery.cancel_scope.cancel()


HOUR = 3600 * SECOND


async def test_check_is_repeated_after_its_interval(autojump_clock: trio.testing.MockClock) -> None:
    request = Asked(0, 0, 0)
    await request.run(probe("script", interval=30 * SECOND, timeout=HOUR))
    assert request.moments == [0, 30, 60, 90]


async def test_missing_response_is_a_failure(autojump_clock: trio.testing.MockClock) -> None:
    results = []

    async def hang(task: str, command: Sequence[str]) -> ScriptResult:
        await trio.sleep_forever()
        raise AssertionError

    checks = CheckRunner(
        "a", lambda: 0, lambda: results.append(checks.results[0]), print, hang, allow_all
    )
    async with trio.open_nursery() as nursery:
        checks.follow([probe("script", timeout=5 * SECOND)], nursery)
        await trio.sleep(4.9)
        assert results == []
        await trio.sleep(0.2)
        nursery.cancel_scope.cancel()
    assert [(result.status, result.output) for result in results] == [
        (FAILURE, "nomad: no answer within the timeout of the check")
    ]


async def test_result_of_a_removed_check_is_ignored(
    autojump_clock: trio.testing.MockClock,
) -> None:
    results = []

    async def finish(task: str, command: Sequence[str]) -> ScriptResult:
        checks.follow([], nursery)  # removes the check during the result
        return ScriptResult(1, "")

    checks = CheckRunner("a", lambda: 0, lambda: results.append(1), print, finish, allow_all)
    async with trio.open_nursery() as nursery:
        checks.follow([probe("script", timeout=5 * SECOND)], nursery)
    assert results == checks.results == []


@pytest.mark.parametrize(
    ("initial", "seen"), [("", PENDING), ("passing", SUCCESS), ("critical", FAILURE)]
)
async def test_check_starts_with_its_initial_status(
    autojump_clock: trio.testing.MockClock, initial: str, seen: CheckStatus
) -> None:
    request = Asked()
    await request.run(probe("script", initial_status=initial, timeout=HOUR))
    assert request.seen == [seen]


@pytest.mark.parametrize(
    ("fields", "codes", "seen"),
    [
        ({}, [0, 1, 0], [PENDING, SUCCESS, FAILURE, SUCCESS]),
        ({"success_before_passing": 2}, [0, 0, 1], [PENDING, PENDING, SUCCESS, FAILURE]),
        ({"failures_before_critical": 2}, [1, 1, 0], [PENDING, PENDING, FAILURE, SUCCESS]),
        ({"failures_before_critical": 2}, [0, 1, 0, 1], [PENDING, *[SUCCESS] * 4]),
    ],
)
async def test_check_changes_its_status_after_enough_results(
    autojump_clock: trio.testing.MockClock, fields: Any, codes: list[int], seen: list[CheckStatus]
) -> None:
    request = Asked(*codes)
    await request.run(probe("script", timeout=HOUR, **fields))
    assert request.seen == seen


@pytest.mark.parametrize(
    ("rule", "fields", "moments"),
    [
        (None, {}, []),
        (CheckRestart(limit=0, grace=0), {}, []),
        (CheckRestart(limit=1, grace=0), {}, [0, 1, 2, 3, 4, 5]),
        (CheckRestart(limit=3, grace=0), {}, [2, 5]),
        (CheckRestart(limit=1, grace=2 * SECOND), {}, [2, 4]),
        (CheckRestart(limit=2, grace=2 * SECOND), {}, [3]),
        (CheckRestart(limit=1), {}, [1, 2, 3, 4, 5]),
        (CheckRestart(limit=1, grace=0), {"failures_before_critical": 3}, [2, 3, 4, 5]),
    ],
)
async def test_check_restarts_a_repeatedly_failing_task_after_its_grace(
    autojump_clock: trio.testing.MockClock, rule: CheckRestart | None, fields: Any, moments: Any
) -> None:
    request = Asked(*[1] * 6)
    await request.run(probe("script", check_restart=rule, timeout=HOUR, **fields))
    assert request.restarts == [(moment, "main") for moment in moments]


# ---- gRPC --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "found", "words"),
    [
        (Health(message(1)), SUCCESS, "nomad: grpc SERVING"),
        (Health(message(2)), FAILURE, "nomad: grpc NOT_SERVING"),
        (Health(message(3)), FAILURE, "nomad: grpc SERVICE_UNKNOWN"),
        (Health(bytes(5)), FAILURE, "nomad: grpc UNKNOWN"),
        (Health(message(9)), FAILURE, "nomad: grpc 9"),
        (
            Health(b"", [("grpc-status", "5"), ("grpc-message", "unknown%20service")]),
            FAILURE,
            "nomad: the call failed with status 5: unknown service",
        ),
        (Health(b"", [("x", "y")]), FAILURE, "nomad: the call failed with status none"),
        (Health(b"", status="404"), FAILURE, "nomad: the server answered with status 404"),
        (
            Health(b"nonsense"),
            FAILURE,
            "nomad: the answer does not follow the health checking protocol",
        ),
        (Health(b"x" * 10_000), FAILURE, "nomad: the answer has more than 4096 bytes"),
    ],
)
async def test_grpc_server_reports_its_health(
    server: Health, found: CheckStatus, words: str
) -> None:
    async with listening(server.serve) as port:
        assert await run_check(probe("grpc", port), nothing_runs, allow_all) == (found, 0, words)
    assert server.heads[":path"] == "/grpc.health.v1.Health/Check"
    assert server.heads["content-type"] == "application/grpc"


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("", bytes(5)),
        ("web", b"\x00\x00\x00\x00\x05\x0a\x03web"),
        ("x" * 200, b"\x00\x00\x00\x00\xcb\x0a\xc8\x01" + b"x" * 200),
    ],
)
async def test_grpc_check_names_the_service(name: str, question: bytes) -> None:
    server = Health(message(1))
    async with listening(server.serve) as port:
        await run_check(probe("grpc", port, grpc_service=name), nothing_runs, allow_all)
    assert server.question == question


async def test_server_of_another_protocol_is_unhealthy() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with listening(serve) as port:
        found, _, words = await run_check(probe("grpc", port), nothing_runs, allow_all)
    assert found == FAILURE
    assert words.startswith("nomad: ")


async def test_closed_port_is_unhealthy() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.aclose()

    async with listening(serve) as port:
        pass
    found, _, words = await run_check(probe("grpc", port), nothing_runs, allow_all)
    assert (found, words.startswith("nomad: ")) == (FAILURE, True)
