"""Requests that create entries in the audit log and spans of traces, and requests that do not."""

from typing import Any

import msgspec
import pytest
import trio

from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.app.context import AppContext
from daemon.identity.lazy_methods import LazyMethods
from daemon.otlp.recorder import Recorder, Span
from daemon.web.dispatcher import Dispatcher
from daemon.web.reply import WireResponse
from daemon.web.request_head import RequestHead
from storage import request_context
from storage.queries import audit
from storage.records.acl import Token
from storage.store import Store
from tests.parts.api.requests import parts_of
from tests.samples import NOW


class Asker:
    """A client that calls the dispatcher directly."""

    def __init__(self, parts: AppContext, secret: str) -> None:
        self._dispatcher = Dispatcher(parts, ROUTES, ENDPOINTS, trio.Event())
        self._secret = secret

    async def ask(
        self, method: str, path: str, query: str = "", *, token: bool = True, **headers: str
    ) -> WireResponse:
        async def no_body() -> bytes:
            return b""

        given = {"host": "localhost", "x-request-id": "1", **headers}
        if token:
            given["x-nomad-token"] = self._secret
        head = RequestHead(method=method, target=path.encode(), query=query, headers=given)
        return await self._dispatcher.answer(head, no_body)


@pytest.fixture
async def asker(store: Store) -> Asker:
    parts = parts_of(store)
    parts = msgspec.structs.replace(parts, door=LazyMethods(parts.fences))
    root = Token(accessor="", policies=("root",), created_at=NOW)
    return Asker(parts, (await parts.tokens.issue(root)).secret)


def recorded(store: Store) -> list[str]:
    return [item.path for item in store.read(lambda db: audit.after(db, 0))]


@pytest.mark.parametrize(
    ("path", "token", "entries"),
    [
        ("/v1/agent/health", False, 0),
        ("/v1/agent/health", True, 0),
        ("/v1/regions", True, 0),
        ("/v1/vars", False, 0),  # the answer to an anonymous caller is empty
        ("/v1/vars", True, 1),
        ("/v1/jobs", True, 1),
    ],
)
async def test_reads_of_an_ai_assistant_are_recorded_on_routes_with_a_token(
    asker: Asker, store: Store, path: str, token: bool, entries: int
) -> None:
    before = len(recorded(store))
    answer = await asker.ask("GET", path, "via=mcp", token=token)
    assert answer.status == 200
    assert recorded(store)[before:] == [path] * entries


# --- traces ---


@pytest.fixture
def spans() -> Any:
    found: list[Span] = []
    request_context.TRACING.recorder = Recorder(found.append, lambda: NOW, lambda: 0.5, 100)
    yield found
    request_context.TRACING.recorder = None


TRACED = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/none", 404),
        ("DELETE", "/v1/jobs", 405),
        ("X" * 30_000, "/v1/jobs", 405),
    ],
)
async def test_request_without_a_route_creates_no_span(
    asker: Asker, spans: list[Span], method: str, path: str, status: int
) -> None:
    answer = await asker.ask(method, path, **TRACED)
    assert answer.status == status
    assert spans == []


async def test_unknown_method_is_not_in_a_span(asker: Asker, spans: list[Span]) -> None:
    route = "/v1/job/{job_id}/versions"  # a route that accepts any method
    await asker.ask("X" * 30_000, "/v1/job/none/versions", **TRACED)
    (span,) = spans
    assert span.name == f"_OTHER {route}"
    assert dict(span.attributes)["http.request.method"] == "_OTHER"
