"""The way to the login methods: they are opened when there is something for them to do."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager as Opening
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
import trio
import trio.testing

from daemon.acl.keyring import Keyring
from daemon.acl.seal import Seal
from daemon.acl.tokens import Tokens
from daemon.config import Config
from daemon.fields import Fields
from daemon.identity import mounts
from daemon.identity.door import Door, open_door
from daemon.identity.issuer import Issuer
from daemon.identity.methods import open_methods
from storage.queries import tokens as stored
from storage.records.acl import Token, TokenKind
from storage.records.identity import Mount
from storage.store import Store
from tests.samples import NOW

MOUNT = mounts.new_mount("cloudid/", Fields({"type": "cloudid"}), "m-1")


class Clock:
    def now(self) -> int:
        return NOW


@pytest.fixture
def tokens(store: Store) -> Tokens:
    return Tokens(store, Clock(), Keyring(bytes(32)), asks=True)


def opening(store: Store, tokens: Tokens, directory: Path) -> Opening[Door]:
    seal, ids = Seal({1: bytes(32)}), iter(lambda: str(uuid4()), "")
    issuer = Issuer(store, seal, Clock(), ids)
    config = Config(data_dir=directory)
    return open_door(
        store, partial(open_methods, store, Clock(), seal, tokens, issuer, ids, config)
    )


@pytest.fixture
async def door(store: Store, tokens: Tokens, tmp_path: Path) -> AsyncIterator[Door]:
    async with opening(store, tokens, tmp_path) as one:
        yield one


def issued(mount: Mount) -> Token:
    return Token(
        accessor="a-1",
        kind=TokenKind.SERVICE,
        name="",
        created_at=NOW,
        mount=mount.accessor,
    )


async def test_without_a_mount_nothing_is_opened(door: Door) -> None:
    await trio.testing.wait_all_tasks_blocked()
    assert not door.knocked.is_set()


async def test_whoever_asks_gets_the_same_methods(door: Door) -> None:
    assert await door.methods() is await door.methods()


async def test_a_mount_opens_them_at_once(store: Store, tokens: Tokens, tmp_path: Path) -> None:
    await mounts.enable(store, MOUNT)
    async with opening(store, tokens, tmp_path) as door:
        assert door.knocked.is_set()


async def test_tokens_of_a_mount_that_is_gone_end_although_there_is_none_left(
    store: Store, tokens: Tokens, tmp_path: Path
) -> None:
    await store.write(lambda tx: tokens.add(tx, issued(MOUNT), "a secret"))
    async with opening(store, tokens, tmp_path):
        assert store.read(lambda db: stored.find(db, "a-1")) is None
