"""One-time tokens: a secret that works once, and ends with the token that it stands for."""

from pathlib import Path

import pytest

from daemon.acl import onetime, wrapping
from daemon.acl.onetime import LIFE
from daemon.acl.tokens import Issued, Tokens
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
SECRET = "5f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e55"  # noqa: S105


async def made(store: Store, tokens: Tokens) -> Issued:  # noqa: F811
    issued = await tokens.issue(token("a", "root"), SECRET)
    await onetime.make(store, tokens, issued.token, issued.secret, one_time=ONE_TIME, now=NOW)
    return issued


async def test_it_is_exchanged_for_its_token_once(store: Store, tokens: Tokens) -> None:  # noqa: F811
    issued = await made(store, tokens)
    assert await onetime.exchange(store, tokens, ONE_TIME) == issued
    with pytest.raises(Denied):
        await onetime.exchange(store, tokens, ONE_TIME)
    assert tokens.resolve(SECRET).token == issued.token


async def test_neither_secret_is_in_the_file(
    store: Store,
    tokens: Tokens,  # noqa: F811
    tmp_path: Path,
) -> None:
    await made(store, tokens)
    assert SECRET.encode() not in whole_file(tmp_path)
    assert ONE_TIME.encode() not in whole_file(tmp_path)


async def test_it_ends_with_its_time(store: Store, tokens: Tokens, clock: Clock) -> None:  # noqa: F811
    await made(store, tokens)
    clock.time += LIFE
    with pytest.raises(Denied):
        await onetime.exchange(store, tokens, ONE_TIME)


async def test_it_ends_with_its_token(store: Store, tokens: Tokens) -> None:  # noqa: F811
    await made(store, tokens)
    await store.write(lambda tx: rows.remove(tx, "a"))
    with pytest.raises(Denied):
        await onetime.exchange(store, tokens, ONE_TIME)


async def test_it_cannot_be_unwrapped_on_the_other_side(store: Store, tokens: Tokens) -> None:  # noqa: F811
    await made(store, tokens)
    with pytest.raises(Malformed, match="is not valid or does not exist"):
        await wrapping.unwrap(store, tokens, ONE_TIME)
    await onetime.exchange(store, tokens, ONE_TIME)


async def test_what_was_wrapped_on_the_other_side_cannot_be_exchanged(
    store: Store,
    tokens: Tokens,  # noqa: F811
) -> None:
    wrapped = await wrapping.wrap(store, tokens, b"{}", "a/path", ttl=60, now=NOW)
    with pytest.raises(Denied):
        await onetime.exchange(store, tokens, wrapped.secret)


@pytest.mark.parametrize("text", ["", "guess", SECRET])
async def test_another_text_is_refused(store: Store, tokens: Tokens, text: str) -> None:  # noqa: F811
    await made(store, tokens)
    with pytest.raises(Denied):
        await onetime.exchange(store, tokens, text)
