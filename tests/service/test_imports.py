"""Modules for rare requests are imported at their first use.

So the daemon starts fast and stays small. It is executed instead of forked, because a forked daemon
has imported all modules before.
"""

import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests import websocket_client
from tests.service.daemon import Steward, open_steward
from tests.service.streaming import open_stream
from tests.service.test_daemon_lifecycle import service

# Modules that neither a start nor a simple job may import, including their submodules.
FOR_FEW = (
    "bcrypt",
    "cryptography.hazmat.primitives.serialization",
    "cryptography.x509",
    "daemon.acl.audit_sinks",
    "daemon.acl.explain",
    "daemon.acl.response_wrapping",
    "daemon.acl.token_requests",
    "daemon.api.cloud_login",
    "daemon.api.contract",
    "daemon.cli",
    "daemon.evals.deployment_actions",
    "daemon.identity.devcloud",
    "daemon.identity.jwt_signing",
    "daemon.identity.methods",
    "daemon.jobs.version_history",
    "daemon.jobspec.diff",
    "daemon.jobspec.diffs",
    "daemon.jobspec.filters",
    "daemon.jobspec.hcl",
    "daemon.notify.attempts",
    "daemon.process.reload",
    "daemon.runner.drivers.podman",
    "daemon.runner.exec_session",
    "daemon.runner.setup.artifacts",
    "daemon.scheduler.nodes.preemption",
    "daemon.scheduler.system_scheduler",
    "daemon.scheduler.workflow_scheduler",
    "daemon.ui.jobs",
    "daemon.ui.render",
    "httpx",
    "jwt",
    "re2",
    "rich",
    "yaml",
    "zoneinfo",
)
# The HTTP server and its libraries, which the first connection beyond the fast path imports.
HTTP_SERVER = (
    "asyncio",
    "click",
    "daemon.web.asgi_app",
    "daemon.web.http_connection",
    "email",
    "flask",
    "h2",
    "hypercorn",
    "jinja2",
    "quart",
    "quart_trio",
    "werkzeug",
    "wsproto",
)
# The maximum number of Steward's modules and of other packages' modules that a start may import.
# Modules of the standard library do not count.
MOST_OF_OURS, MOST_OF_OTHERS = 361, 400
# A start must not import handlers either, because it calls none.
HANDLERS = "daemon.api."
STANDARD = sys.stdlib_module_names
TABLES = {"daemon.api.vault_routes", "daemon.api.routes"}


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Steward]:
    """Run a daemon that logs the modules that it imports."""
    monkeypatch.setenv("PYTHONVERBOSE", "1")
    async with open_steward(tmp_path, "--dev", executed=True) as running:
        yield running


def imported(steward: Steward) -> set[str]:
    return set(re.findall(r"^import '([\w.]+)'", steward.log.read_text(), re.MULTILINE))


def below(names: set[str], places: tuple[str, ...]) -> set[str]:
    return {name for name in names if f"{name}.".startswith(tuple(f"{place}." for place in places))}


async def test_a_start_imports_no_more_modules_than_its_budget_has(watched: Steward) -> None:
    await watched.stop()
    found = {name for name in imported(watched) if name.partition(".")[0] not in STANDARD}
    ours = below(found, ("daemon", "storage"))
    assert len(ours) <= MOST_OF_OURS
    assert len(found - ours) <= MOST_OF_OTHERS


async def test_read_and_login_import_no_http_server(watched: Steward) -> None:
    assert await watched.get("/v1/jobs") == []
    await watched.stop()
    assert below(imported(watched), HTTP_SERVER) == set()


async def test_first_stream_imports_the_http_server(watched: Steward) -> None:
    async with open_stream(watched, "/v1/event/stream", index=1) as stream:
        assert stream.status == 200
        assert await stream.line()
    await watched.stop()
    assert {name.partition(".")[0] for name in below(imported(watched), HTTP_SERVER)} == {
        name.partition(".")[0] for name in HTTP_SERVER
    }


async def test_first_websocket_imports_the_http_server(watched: Steward) -> None:
    """The route exists, and its handler reports that the allocation does not."""
    path = f"/v1/client/allocation/{'0' * 8}-0000-4000-8000-{'0' * 12}/exec"
    query = {"task": "main", "command": '["true"]'}
    async with websocket_client.talk(watched.address, path, **query) as socket:
        await socket.all()
    await watched.stop()
    assert below(imported(watched), ("wsproto",))


async def test_start_imports_no_rarely_needed_module(watched: Steward) -> None:
    await watched.stop()
    found = imported(watched)
    assert "daemon.web.server" in found
    assert below(found, FOR_FEW) == set()
    assert {name for name in found if name.startswith(HANDLERS)} == TABLES


async def test_simple_job_imports_no_rarely_needed_module(watched: Steward) -> None:
    await watched.run_job(service())
    await watched.stop()
    found = imported(watched)
    assert "daemon.api.jobs" in found
    assert below(found, (*FOR_FEW, *HTTP_SERVER)) == set()
