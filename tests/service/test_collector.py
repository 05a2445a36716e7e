"""OpenTelemetry's own Collector receives the trace of a rollout, and the metrics.

    cd tests/collector && CGO_ENABLED=0 go build -o collector .

builds it from its published modules with Go 1.26 in some minutes. Without it, the test is skipped.
"""

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.fakes.collector import Metric, Span, metrics_of, spans_of
from tests.service.daemon import open_steward
from tests.service.test_traces import PARENT, TRACE, ask, job, named, path_to_root
from tests.time_limits import HAPPENS_WITHIN

PROGRAM = Path(__file__).parents[1] / "collector/collector"
pytestmark = pytest.mark.skipif(
    not PROGRAM.exists(),
    reason="the collector is missing: run go build -o collector . in tests/collector",
)


async def lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in stream:
        *found, rest = (rest + chunk).split(b"\n")
        for line in found:
            yield line


class Printed:
    """The output of the collector: spans, and metrics by name."""

    def __init__(self, address: str, stream: trio.abc.ReceiveStream) -> None:
        self.address, self._stream = address, stream
        self.spans: list[Span] = []
        self.metrics: dict[str, Metric] = {}

    async def until(self, *names: str) -> None:
        """Wait until the collector has received these spans of the trace, and metrics."""
        with trio.fail_after(HAPPENS_WITHIN):
            async with aclosing(lines(self._stream)) as found:
                async for line in found:
                    if line.startswith(b'{"resourceSpans"'):
                        self.spans += spans_of(line)
                    else:
                        self.metrics |= metrics_of(line)
                    if self.metrics and all(named(self.spans, name) for name in names):
                        return
        raise AssertionError(f"the collector ended after {[span.name for span in self.spans]}")


@asynccontextmanager
async def open_program() -> AsyncIterator[Printed]:
    """Run the collector on a free port of loopback while the block runs."""
    settings = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": "127.0.0.1:0"}}}},
        "exporters": {"file": {"path": "/dev/stdout", "flush_interval": "20ms"}},
        "service": {
            "pipelines": {
                kind: {"receivers": ["otlp"], "exporters": ["file"]}
                for kind in ("traces", "metrics")
            }
        },
    }
    process = await trio.lowlevel.open_process(
        [PROGRAM, "--config", f"yaml:{json.dumps(settings)}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        address = ""
        with trio.fail_after(HAPPENS_WITHIN):
            async with aclosing(lines(process.stderr)) as told:
                async for line in told:
                    told_now = json.loads(line)
                    address = told_now.get("endpoint", address)
                    if told_now["msg"].startswith("Everything is ready"):
                        break
        yield Printed(f"http://{address}", process.stdout)
    finally:
        process.terminate()
        await process.wait()


async def test_collector_receives_the_trace_of_a_rollout(tmp_path: Path) -> None:
    async with open_program() as printed:
        settings = tmp_path / "steward.toml"
        settings.write_text(f'otlp_url = "{printed.address}"\notlp_metrics_seconds = 1\n')
        async with open_steward(tmp_path, "--dev", "--config", str(settings)) as steward:
            service = job("web", "exec sleep 600", Type="service")
            service["TaskGroups"][0]["Update"] = {
                "MinHealthyTime": 1_000_000,
                "HealthyDeadline": 10**10,
            }
            await ask(steward, "/v1/jobs", {"Job": service})
            await steward.allocations("web", "running")
            await steward.until("/v1/job/web/deployment", lambda one: one["Status"] == "successful")
            await steward.delete("/v1/job/web")
            await printed.until("allocation")
    spans = [span for span in printed.spans if span.trace_id == TRACE]
    above = ["allocation", "write", "placement", "evaluation", "write", "POST /v1/jobs"]
    for name, below in (("start", ["task main", *above]), ("first health", above)):
        span = named(spans, name)
        assert span is not None
        assert path_to_root(span, spans) == [name, *below]
    request = named(spans, "POST /v1/jobs")
    assert request is not None
    assert request.parent_span_id == PARENT
    assert "nomad.client.allocations.running" in printed.metrics
