"""A long list of the Vault API: only a part of it is in memory, and the response is the same."""

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest
import trio

from bench import other_objects
from daemon.api import vault_reads
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.web import response_wrapping
from daemon.web.dispatcher import Dispatcher
from daemon.web.request_head import RequestHead
from storage.queries import entities, tokens
from storage.queries.pages import ALL, KeyRange
from storage.read_pool import ReadSnapshot
from storage.records.acl import Token
from storage.store import Store
from tests.parts.api.requests import parts_of
from tests.samples import NOW

NUMBER = 20  # tokens, in addition to the caller's
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


async def ask(
    asking: tuple[Dispatcher, str],
    query: str,
    path: str = "/v1/auth/token/accessors",
    **headers: str,
) -> tuple[bool, Any]:
    """Return whether the list came in parts, and the body of the response."""
    dispatcher, secret = asking
    given = {"host": "localhost", "x-request-id": "1", "x-vault-token": secret, **headers}
    head = RequestHead(
        method=given.pop("method", "GET"),
        target=path.encode(),
        query=f"list=true{query}",
        headers=given,
    )

    async def body() -> bytes:
        return b""

    answer = await dispatcher.answer(head, body)
    assert answer.status in (200, 400)
    whole = answer.body
    if answer.stream is not None:
        whole = b"".join([piece async for piece in answer.stream])
    return answer.stream is not None, msgspec.json.decode(whole)


@pytest.mark.parametrize("query", ["", "&limit=9", "&limit=14", "&limit=100", "&after=a-03"])
async def test_long_list_sent_in_parts_is_unchanged(
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


# Lists with descriptions, below sys/ (which repeat their data), and of roles.
OTHERS = {
    "/v1/identity/entity/id": {"keys", "key_info"},
    "/v1/identity/entity-alias/id": {"keys", "key_info"},
    "/v1/identity/group/id": {"keys", "key_info"},
    "/v1/identity/group-alias/id": {"keys", "key_info"},
    "/v1/sys/policies/acl": {"keys"},
    "/v1/sys/policy": {"keys", "policies"},
    "/v1/sys/leases/lookup/auth/many/login": {"keys"},
    "/v1/auth/many/role": {"keys"},
}


@pytest.fixture
async def filled(store: Store) -> None:
    await store.write(
        lambda tx: other_objects.add_without_services(tx, NUMBER * other_objects.FEW, NOW)
    )


@pytest.mark.parametrize("path", OTHERS)
@pytest.mark.parametrize("query", ["", "&limit=9", "&limit=14"])
async def test_list_of_any_form_sent_in_parts_is_unchanged(
    asking: tuple[Dispatcher, str],
    filled: None,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    query: str,
) -> None:
    in_parts, whole = await ask(asking, query, path)
    assert in_parts is False
    assert {*whole["data"]} == OTHERS[path]
    assert len(whole["data"]["keys"]) >= 9
    monkeypatch.setattr(vault_reads, "STEP", STEP)
    monkeypatch.setattr(vault_reads, "INFO_STEP", STEP)
    assert await ask(asking, query, path) == (True, whole)


async def test_keys_and_descriptions_agree_after_a_concurrent_deletion(
    asking: tuple[Dispatcher, str], filled: None, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault_reads, "INFO_STEP", STEP)
    look, steps = Store.read_any, count()

    async def deleting(store: Store, work: Callable[[ReadSnapshot], Any]) -> Any:
        if next(steps) == 1:
            every = store.read(lambda db: entities.list_all(db, ALL))
            await store.write(lambda tx: [entities.remove(tx, every[n].id) for n in (0, STEP)])
        return await look(store, work)

    monkeypatch.setattr(Store, "read_any", deleting)
    in_parts, found = await ask(asking, "", "/v1/identity/entity/id")
    assert in_parts
    assert found["data"]["keys"] == list(found["data"]["key_info"])
    assert len(found["data"]["keys"]) == NUMBER * other_objects.FEW - 1


async def test_wrapped_list_is_stored_as_one_body(
    asking: tuple[Dispatcher, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (await ask(asking, ""))[1]
    monkeypatch.setattr(vault_reads, "STEP", STEP)
    in_parts, found = await ask(asking, "", **{"x-vault-wrap-ttl": "60"})
    assert (in_parts, found["wrap_info"]["ttl"]) == (False, 60)
    secret = found["wrap_info"]["token"]
    path = "/v1/sys/wrapping/unwrap"
    unwrapped = await ask(asking, "", path, method="POST", **{"x-vault-token": secret})
    assert unwrapped[1]["data"] == whole["data"]


async def test_wrapped_list_beyond_the_limit_is_refused_early(
    asking: tuple[Dispatcher, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault_reads, "STEP", STEP)
    monkeypatch.setattr(response_wrapping, "MOST", 2 * STEP)
    looked = list[KeyRange]()
    names = tokens.accessors
    monkeypatch.setattr(
        tokens, "accessors", lambda db, span: looked.append(span) or names(db, span)
    )
    _, found = await ask(asking, "", **{"x-vault-wrap-ttl": "60"})
    assert "limit and after" in found["errors"][0]
    assert [span.after for span in looked] == [""]


async def test_wrapped_response_beyond_the_limit_is_refused(
    asking: tuple[Dispatcher, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_wrapping, "MOST", 10)
    path = "/v1/auth/token/lookup-self"
    _, found = await ask(asking, "", path, method="POST", **{"x-vault-wrap-ttl": "60"})
    assert "X-Vault-Wrap-TTL" in found["errors"][0]


@pytest.mark.parametrize("path", ["/v1/sys/version-history", "/v1/sys/plugins/catalog/auth"])
async def test_a_list_without_pages_names_parameters_without_effect(
    asking: tuple[Dispatcher, str], path: str
) -> None:
    _, found = await ask(asking, "&limit=1", path)
    assert found["warnings"] == ["Endpoint ignored these unrecognized parameters: [limit]"]
