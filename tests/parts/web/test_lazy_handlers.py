"""Modules of handlers that are imported at the first request."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio

from daemon.acl.check import ANYONE
from daemon.api.routes import ROUTES
from daemon.web.dispatcher import Dispatcher
from daemon.web.lazy import LazyHandler, LazyModule
from daemon.web.request import StreamRoute
from daemon.web.request_head import RequestHead
from storage.store import Store
from tests.parts.api.requests import parts_of

LATE = "late_handler_of_a_test"
TEXT = """
import threading
from daemon.web.reply import HandlerReply

THREAD = threading.get_ident()

async def show(request):
    return HandlerReply(body=[THREAD, threading.get_ident()])
"""


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LazyModule]:
    (tmp_path / f"{LATE}.py").write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    yield LazyModule(LATE, is_large=True)
    sys.modules.pop(LATE, None)


async def test_a_thread_imports_a_large_module(store: Store, late: LazyModule) -> None:
    routes = (StreamRoute("/v1/late", late.show, ANYONE),)
    dispatcher = Dispatcher(parts_of(store), routes, (), trio.Event())
    headers = {"host": "localhost", "x-request-id": "1"}
    head = RequestHead(method="GET", target=b"/v1/late", query="", headers=headers)

    async def body() -> bytes:
        return b""

    for _ in range(2):
        answer = await dispatcher.answer(head, body)
        imported_by, called_by = msgspec.json.decode(answer.body)
        assert called_by == threading.get_ident()
        assert imported_by != called_by


def test_a_thread_imports_the_metrics() -> None:
    (handler,) = [route.handler for route in ROUTES if route.path == "/v1/metrics"]
    assert isinstance(handler, LazyHandler)
    vars(handler).pop("function", None)
    assert handler.needs_thread
