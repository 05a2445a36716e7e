"""One-time tokens: the secret works once, and is revoked with the token for which it stands."""

from pathlib import Path

import pytest

from daemon.acl import one_time_tokens, response_wrapping
from daemon.acl.one_time_tokens import LIFE
from daemon.acl.tokens import IssuedToken, TokenStore
from storage.errors import Denied, Malformed
from storage.queries import tokens as rows
from storage.store import Store
from tests.parts.acl.test_tokens import (  # noqa: F401  # fixtures
    Clock,
    clock,
    token,
    tokens,
    whole_file,
)
from tests.samples import NOW

ONE_TIME = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11"
SECRET = "5f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e55"  # noqa: S105  # not a real secret


async def made(store: Store, tokens: TokenStore) -> IssuedToken:  # noqa: F811  # a fixture
    issued = await tokens.issue(token("a", "root"), SECRET)
    await one_time_tokens.create_one_time_token(
        store, tokens, issued.token, issued.secret, one_time=ONE_TIME, now=NOW
    )
    return issued


async def test_one_time_token_is_exchanged_once(store: Store, tokens: TokenStore) -> None:  # noqa: F811  # a fixture
    issued = await made(store, tokens)
    assert await one_time_tokens.exchange_one_time_token(store, tokens, ONE_TIME) == issued
    with pytest.raises(Denied):
        await one_time_tokens.exchange_one_time_token(store, tokens, ONE_TIME)
    assert tokens.resolve(SECRET).token == issued.token


async def test_neither_secret_is_stored_in_plain_text(
    store: Store,
    tokens: TokenStore,  # noqa: F811  # a fixture
    tmp_path: Path,
) -> None:
    await made(store, tokens)
    assert SECRET.encode() not in whole_file(tmp_path)
    assert ONE_TIME.encode() not in whole_file(tmp_path)


async def test_one_time_token_expires(store: Store, tokens: TokenStore, clock: Clock) -> None:  # noqa: F811  # a fixture
    await made(store, tokens)
    clock.time += LIFE
    with pytest.raises(Denied):
        await one_time_tokens.exchange_one_time_token(store, tokens, ONE_TIME)


async def test_one_time_token_ends_with_its_token(store: Store, tokens: TokenStore) -> None:  # noqa: F811  # a fixture
    await made(store, tokens)
    await store.write(lambda tx: rows.remove(tx, "a"))
    with pytest.raises(Denied):
        await one_time_tokens.exchange_one_time_token(store, tokens, ONE_TIME)


async def test_one_time_token_cannot_be_unwrapped_by_the_vault_api(
    store: Store,
    tokens: TokenStore,  # noqa: F811  # a fixture
) -> None:
    await made(store, tokens)
    with pytest.raises(Malformed, match="is not valid or does not exist"):
        await response_wrapping.unwrap_response(store, tokens, ONE_TIME)
    await one_time_tokens.exchange_one_time_token(store, tokens, ONE_TIME)


async def test_wrapped_response_of_the_other_api_cannot_be_exchanged(
    store: Store,
    tokens: TokenStore,  # noqa: F811  # a fixture
) -> None:
    wrapped = await response_wrapping.wrap_response(store, tokens, b"{}", "a/path", ttl=60, now=NOW)
    with pytest.raises(Denied):
        await one_time_tokens.exchange_one_time_token(store, tokens, wrapped.secret)


@pytest.mark.parametrize("text", ["", "guess", SECRET])
async def test_malformed_one_time_token_is_refused(
    store: Store,
    tokens: TokenStore,  # noqa: F811  # a fixture
    text: str,
) -> None:
    await made(store, tokens)
    with pytest.raises(Denied):
        await one_time_tokens.exchange_one_time_token(store, tokens, text)
