"""Forms of pages: a thread parses a long one, once."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from daemon.config.settings import Settings
from daemon.text import url_forms
from daemon.web.dispatcher import Dispatcher
from daemon.web.reply import HandlerReply
from daemon.web.request_head import RequestHead
from daemon.web.ui_session import UiPage, UiRequest
from storage.store import Store
from tests.parts.api.requests import parts_of
from tests.step_timing import Longest, slowness

MOST = 5_000_000  # nanoseconds
TRIES = 5
HEADERS = {
    "host": "localhost",
    "sec-fetch-site": "same-origin",
    "content-type": "application/x-www-form-urlencoded",
}


async def _echo(visit: UiRequest) -> HandlerReply:
    return HandlerReply(body={"Length": len(visit.form["token"])})


PAGE = UiPage("/ui/echo", _echo, "POST")


def _body(content: bytes) -> Callable[[], Awaitable[bytes]]:
    async def read() -> bytes:
        return content

    return read


@pytest.mark.parametrize("end", [b"&proof=", b"&x"], ids=["valid", "invalid"])
@pytest.mark.parametrize("is_announced", [True, False])
async def test_long_form_does_not_block_the_event_loop(
    store: Store, tmp_path: Path, end: bytes, is_announced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bytes] = []
    parse = url_forms.pairs

    def noted(*arguments: object, **options: object) -> object:
        calls.append(b"")
        return parse(*arguments, **options)

    monkeypatch.setattr(url_forms, "pairs", noted)
    content = b"token=" + b"%41" * 1_000_000 + end
    headers = HEADERS | ({"content-length": str(len(content))} if is_announced else {})
    head = RequestHead(method="POST", target=b"/ui/echo", query="", headers=headers)
    parts = parts_of(store, Settings(data_dir=tmp_path), asks=False)
    dispatcher = Dispatcher(parts, (), (), trio.Event(), [PAGE])
    taken = []
    for _ in range(TRIES):
        measure = Longest()
        await trio.lowlevel.checkpoint()
        trio.lowlevel.add_instrument(measure)
        try:
            await trio.lowlevel.checkpoint()
            answer = await dispatcher.answer(head, _body(content))
        finally:
            await trio.lowlevel.checkpoint()
            trio.lowlevel.remove_instrument(measure)
        taken.append(measure.longest)
    assert answer.status == (200 if end == b"&proof=" else 400)
    assert len(calls) == TRIES
    assert min(taken) <= MOST or min(taken) <= MOST * slowness(), taken
