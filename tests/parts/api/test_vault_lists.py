"""A long list of the Vault API: a part of it is in memory, and the answer is the same."""

from typing import Any

import msgspec
import pytest
import trio

from daemon.api import vault_reads
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.web.dispatcher import Dispatcher
from daemon.web.request_head import RequestHead
from storage.records.acl import Token
from storage.store import Store
from tests.parts.api.asking import parts_of
from tests.samples import NOW

NUMBER = 20  # and the token of the caller
STEP = 7


@pytest.fixture
async def asking(store: Store) -> tuple[Dispatcher, str]:
    parts = parts_of(store)
    for number in range(NUMBER):
        await parts.tokens.issue(Token(accessor=f"a-{number:02}", policies=("x",), created_at=NOW))
    root = Token(accessor="root", policies=("root",), created_at=NOW)
    return Dispatcher(parts, ROUTES, ENDPOINTS, trio.Event()), (
        await parts.tokens.issue(root)
    ).secret


async def ask(asking: tuple[Dispatcher, str], query: str, **headers: str) -> tuple[bool, Any]:
    """Return whether the list came in parts, and its body."""
    dispatcher, secret = asking
    given = {"host": "localhost", "x-request-id": "1", "x-vault-token": secret, **headers}
    head = RequestHead(
        method="GET",
        target=b"/v1/auth/token/accessors",
        query=f"list=true{query}",
        headers=given,
    )

    async def body() -> bytes:
        return b""

    answer = await dispatcher.answer(head, body)
    assert answer.status == 200
    whole = answer.body
    if answer.stream is not None:
        whole = b"".join([piece async for piece in answer.stream])
    return answer.stream is not None, msgspec.json.decode(whole)


@pytest.mark.parametrize("query", ["", "&limit=9", "&limit=14", "&limit=100", "&after=a-03"])
async def test_a_long_list_is_sent_in_parts_and_is_the_same(
    asking: tuple[Dispatcher, str], monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    assert (whole := await ask(asking, query))[0] is False
    monkeypatch.setattr(vault_reads, "STEP", STEP)
    assert await ask(asking, query) == (True, whole[1])


@pytest.mark.parametrize("query", ["&limit=3", "&after=a-18", f"&limit={STEP}"])
async def test_a_short_list_is_one_body(
    asking: tuple[Dispatcher, str], monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(vault_reads, "STEP", STEP)
    in_parts, found = await ask(asking, query)
    assert not in_parts
    assert found["data"]["keys"]


async def test_a_wrapped_list_is_stored_as_one(
    asking: tuple[Dispatcher, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault_reads, "STEP", STEP)
    in_parts, found = await ask(asking, "", **{"x-vault-wrap-ttl": "60"})
    assert (in_parts, found["wrap_info"]["ttl"]) == (False, 60)
