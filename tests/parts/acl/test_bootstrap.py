"""The bootstrap of the ACL system: only the first caller, or the user who resets it, gets a token."""

import os
import stat
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from daemon.acl import bootstrap as module
from daemon.acl.bootstrap import (
    RESET_FILE,
    SECRET_FILE,
    bootstrap,
    bootstrap_index,
    bootstrap_on_first_start,
    read_reset_index,
)
from daemon.acl.seal import EnvelopeCipher
from daemon.acl.tokens import IssuedToken, TokenStore, open_tokens
from storage.errors import Malformed
from storage.queries import tokens as rows
from storage.records.acl import Token
from storage.store import Store
from tests.samples import NOW

SECRET, SECOND_SECRET = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "12")


class Clock:
    def now(self) -> int:
        return NOW


@pytest.fixture
async def tokens(store: Store) -> AsyncIterator[TokenStore]:
    async with open_tokens(store, Clock(), EnvelopeCipher({1: bytes(32)}), asks=True) as opened:
        yield opened


async def bootstrapped(
    store: Store, tokens: TokenStore, secret: str = SECRET, accessor: str = "a", reset: int = 0
) -> IssuedToken:
    return await bootstrap(
        store, tokens, secret=secret, accessor=accessor, now=NOW, reset_index=reset
    )


async def test_bootstrap_creates_a_global_management_token(
    store: Store, tokens: TokenStore
) -> None:
    assert store.read(bootstrap_index) == 0
    issued = await bootstrapped(store, tokens)
    assert tokens.resolve(SECRET).token == issued.token
    assert (issued.token.is_management, issued.token.is_global) == (True, True)


async def test_repeated_bootstrap_needs_the_index_of_the_last_one(
    store: Store, tokens: TokenStore
) -> None:
    await bootstrapped(store, tokens)
    index = store.read(bootstrap_index)
    for wrong in (0, index - 1, index + 1):
        with pytest.raises(Malformed, match=rf"already done \(reset index: {index}\)"):
            await bootstrapped(store, tokens, SECOND_SECRET, "b", wrong)
    await bootstrapped(store, tokens, SECOND_SECRET, "b", index)
    assert {row.accessor for row in store.read(rows.list_all)} == {"a", "b"}
    with pytest.raises(Malformed, match="already done"):
        await bootstrapped(store, tokens, SECRET, "c", index)


@pytest.mark.parametrize("secret", ["", SECRET[:-1], f"{SECRET}0", SECRET.replace("-", "")])
async def test_secret_of_the_bootstrap_is_a_uuid(
    store: Store, tokens: TokenStore, secret: str
) -> None:
    with pytest.raises(Malformed, match="invalid acl token"):
        await bootstrapped(store, tokens, secret)
    assert store.read(bootstrap_index) == 0


@pytest.mark.parametrize(
    ("content", "index"),
    [(b"17", 17), (b" 17\n", 17), (b"", 0), (b"-17", 0), (b"x", 0), (b"1.5", 0), (b"\xff", 0)],
)
def test_reset_file_contains_a_whole_number(tmp_path: Path, content: bytes, index: int) -> None:
    (tmp_path / RESET_FILE).write_bytes(content)
    assert read_reset_index(tmp_path) == index


def test_missing_reset_file_resets_nothing(tmp_path: Path) -> None:
    assert read_reset_index(tmp_path) == 0


async def test_first_start_writes_the_secret_to_a_private_file(
    store: Store, tokens: TokenStore, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    file = tmp_path / SECRET_FILE
    file.symlink_to(elsewhere)
    begin = partial(bootstrap_on_first_start, store, tokens, tmp_path, now=NOW)
    assert await begin(secret=SECRET, accessor="a") == file
    assert (file.read_text(), elsewhere.read_text()) == (f"{SECRET}\n", "kept")
    assert stat.S_IMODE(os.lstat(file).st_mode) == 0o600
    assert tokens.resolve(SECRET).token.is_management
    assert await begin(secret=SECOND_SECRET, accessor="b") is None
    assert file.read_text() == f"{SECRET}\n"


async def test_secret_is_on_disk_before_its_token_is_stored(
    store: Store, tokens: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[tuple[str, int]]()

    def record(descriptor: int) -> None:
        content = Path(f"/proc/self/fd/{descriptor}").read_text()
        synced.append((content, store.read(bootstrap_index)))

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "fsync", record)
        await bootstrap_on_first_start(
            store, tokens, tmp_path, secret=SECRET, accessor="a", now=NOW
        )
    assert synced[0] == (f"{SECRET}\n", 0)


async def test_store_with_a_token_gets_no_bootstrap_token(
    store: Store, tokens: TokenStore, tmp_path: Path
) -> None:
    await tokens.issue(Token(accessor="a", created_at=NOW))
    begin = partial(bootstrap_on_first_start, store, tokens, tmp_path, now=NOW)
    assert await begin(secret=SECRET, accessor="b") is None
    assert not (tmp_path / SECRET_FILE).exists()
    assert store.read(bootstrap_index) == 0
