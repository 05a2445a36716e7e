"""A page of the web interface reads only a limited part of a large store."""

from typing import Any

import pytest

from bench.expensive_requests import Asked
from daemon.web.reply import HandlerReply
from daemon.web.ui_session import UiRequest
from tests.parts.api.test_stall import READS, Asking, asking, directory, searched_seldom, store

MOST_REQUESTS = 120  # of one page to the API
MOST_OBJECTS = 500  # in one list
OF_PAGES = [request for request in READS if request.path.startswith("/ui/")]
# lists by their path in the reply; they are longer for the given reason
LONGER = {
    "/v1/auth/many/role.data.keys": "Vault's list of role names has no pages",
}

__all__ = ["asking", "directory", "searched_seldom", "store"]  # fixtures


class Work:
    """The requests of a page to the API, and the lengths of the lists in the replies."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.lengths: dict[str, int] = {}

    def note(self, path: str, value: object) -> None:
        """Note the lengths of all lists in a decoded reply."""
        if isinstance(value, list):
            self.lengths[path] = max(self.lengths.get(path, 0), len(value))
            for element in value[:MOST_OBJECTS]:
                self.note(f"{path}[]", element)
        elif isinstance(value, dict):
            for name, field in value.items():
                self.note(f"{path}.{name}", field)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    work = Work()
    ask, parsed = UiRequest.ask, UiRequest.parsed

    async def asked(
        self: UiRequest, method: str, path: str, body: object = None, /, **query: object
    ) -> HandlerReply:
        work.requests.append(path)
        return await ask(self, method, path, body, **query)

    async def noted(self: UiRequest, reply: HandlerReply) -> Any:
        value = await parsed(self, reply)
        work.note(work.requests[-1], value)
        return value

    monkeypatch.setattr(UiRequest, "ask", asked)
    monkeypatch.setattr(UiRequest, "parsed", noted)
    return work


@pytest.mark.parametrize(
    "request_", OF_PAGES, ids=lambda request: f"{request.path} {request.query}"
)
async def test_page_reads_a_limited_part_of_the_store(
    asking: Asking, work: Work, request_: Asked
) -> None:
    await asking.longest(request_)
    assert len(work.requests) <= MOST_REQUESTS
    too_long = {path for path, length in work.lengths.items() if length > MOST_OBJECTS}
    assert too_long <= LONGER.keys()
