"""Modules of handlers that are imported at the first request."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio

from daemon.acl.check import ANYONE
from daemon.web.dispatcher import Dispatcher
from daemon.web.lazy import LazyHandler, LazyModule, import_handler
from daemon.web.request import Endpoint, ReadRoute, Route, StreamRoute
from daemon.web.request_head import RequestHead
from daemon.web.ui_session import UiPage
from storage.store import Store
from tests.parts.api.requests import parts_of

LATE = "late_handler_of_a_test"
TEXT = """
import threading
from daemon.web.reply import HandlerReply

THREAD = threading.get_ident()

async def show(request):
    return HandlerReply(body=[THREAD, threading.get_ident()])

def read(request, db):
    return HandlerReply(body=[THREAD, threading.get_ident()])

async def data(call):
    return HandlerReply(body=[THREAD, threading.get_ident()])
"""


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LazyModule]:
    (tmp_path / f"{LATE}.py").write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    yield LazyModule(LATE)
    sys.modules.pop(LATE, None)


@pytest.mark.parametrize("kind", ["stream", "read", "vault", "page"])
async def test_a_thread_imports_the_module_of_a_handler(
    store: Store, late: LazyModule, kind: str
) -> None:
    routes, endpoints, pages = list[Route](), list[Endpoint](), list[UiPage]()
    path = "/v1/late"
    match kind:
        case "stream":
            routes.append(StreamRoute(path, late.show, ANYONE))
        case "read":
            routes.append(ReadRoute(path, late.read, ANYONE))
        case "vault":
            path = "/v1/sys/late"
            endpoints.append(Endpoint("sys/late", read=late.data, is_open=True))
        case "page":
            path = "/ui/late"
            pages.append(UiPage(path, late.show, is_file=True))
    dispatcher = Dispatcher(parts_of(store), routes, endpoints, trio.Event(), pages)
    headers = {"host": "localhost", "x-request-id": "1"}
    head = RequestHead(method="GET", target=path.encode(), query="", headers=headers)

    async def body() -> bytes:
        return b""

    for _ in range(2):
        answer = await dispatcher.answer(head, body)
        imported_by, called_by = msgspec.json.decode(answer.body)
        assert called_by == threading.get_ident()
        assert imported_by != called_by


async def test_an_imported_module_needs_no_thread(late: LazyModule) -> None:
    first, second = late.show, late.read
    assert isinstance(second, LazyHandler)
    await import_handler(first)
    assert not second.is_missing
