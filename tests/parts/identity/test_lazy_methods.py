"""Lazy login methods: they are opened at their first use."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager as Opening
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
import trio
import trio.testing

from daemon.acl.keyring import Keyring
from daemon.acl.seal import EnvelopeCipher
from daemon.acl.tokens import TokenStore
from daemon.config.settings import Settings
from daemon.fences import Fences
from daemon.identity import mounts
from daemon.identity.issuer import Issuer
from daemon.identity.lazy_methods import LazyMethods, open_door
from daemon.identity.methods import LoginMethods, open_methods
from daemon.text.request_fields import RequestFields
from storage.errors import Unavailable
from storage.queries import tokens as stored
from storage.records.acl import Token, TokenKind
from storage.records.identity import Mount
from storage.store import Store
from tests.parts.identity.conftest import DAMAGES, Login, damage
from tests.samples import NOW
from tests.time_limits import HAPPENS_WITHIN

MOUNT = mounts.new_mount("cloudid/", RequestFields({"type": "cloudid"}), "m-1")


class Clock:
    def now(self) -> int:
        return NOW


@pytest.fixture
def tokens(store: Store) -> TokenStore:
    return TokenStore(store, Clock(), Keyring(bytes(32)), asks=True)


def opening(store: Store, tokens: TokenStore, directory: Path) -> Opening[LazyMethods]:
    seal, ids = EnvelopeCipher({1: bytes(32)}), iter(lambda: str(uuid4()), "")
    issuer = Issuer(store, seal, Clock(), ids)
    config = Settings(data_dir=directory)
    methods = partial(open_methods, store, Clock(), seal, tokens, issuer, ids, config)
    return open_door(store, methods, Fences(Clock()))


@pytest.fixture
async def door(store: Store, tokens: TokenStore, tmp_path: Path) -> AsyncIterator[LazyMethods]:
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


async def test_no_login_module_is_opened_without_a_mount(door: LazyMethods) -> None:
    await trio.testing.wait_all_tasks_blocked()
    assert not door.knocked.is_set()
    assert not door._methods


async def test_all_callers_get_the_same_methods(door: LazyMethods) -> None:
    assert await door.methods() is await door.methods()


async def test_first_mount_opens_the_login_methods(
    store: Store, tokens: TokenStore, tmp_path: Path
) -> None:
    await mounts.enable(store, MOUNT)
    async with opening(store, tokens, tmp_path) as door:
        assert door.knocked.is_set()


@pytest.mark.parametrize("left", DAMAGES)
@pytest.mark.parametrize("has_tokens", [False, True])
async def test_mount_whose_row_is_damaged_does_not_stop_the_start(
    store: Store, tokens: TokenStore, tmp_path: Path, has_tokens: bool, left: bytes
) -> None:
    await mounts.enable(store, MOUNT)
    if has_tokens:
        await store.write(lambda tx: tokens.add(tx, issued(MOUNT), "a secret"))
    damage(store, MOUNT.path, left)
    with trio.fail_after(HAPPENS_WITHIN):
        async with opening(store, tokens, tmp_path) as door:
            fences = (await door.methods()).warm._fences
            assert {fault.key for fault in fences.faults()} == {MOUNT.path}
            other = mounts.new_mount("other/", RequestFields({"type": "cloudid"}), "m-2")
            await mounts.enable(store, other)
    kept = store.read(lambda db: stored.find(db, "a-1"))
    assert (kept is not None) == has_tokens


@asynccontextmanager
async def broken() -> AsyncIterator[LoginMethods]:
    """Fail to open the login methods."""
    raise OSError("no room")
    yield  # makes this function a generator


@asynccontextmanager
async def stuck() -> AsyncIterator[LoginMethods]:
    """Never finish opening the login methods."""
    await trio.sleep_forever()
    yield


@pytest.mark.parametrize(
    ("opening", "reason"), [(broken, "OSError: no room"), (stuck, "they were not open after 5 s")]
)
async def test_failed_login_methods_delay_neither_the_start_nor_a_login(
    store: Store,
    autojump_clock: trio.testing.MockClock,
    opening: Callable[[], Opening[LoginMethods]],
    reason: str,
) -> None:
    await mounts.enable(store, MOUNT)
    with trio.fail_after(60):
        async with open_door(store, opening, Fences(Clock())) as door:
            with pytest.raises(Unavailable, match=reason):
                await door.methods()


async def test_closed_login_methods_are_not_returned(login: Login) -> None:
    door = LazyMethods(Fences(Clock()))
    with door.open(login.methods):
        assert await door.methods() is login.methods
    with trio.CancelScope() as scope:
        scope.cancel()
        await door.methods()
    assert scope.cancelled_caught


async def test_tokens_of_the_last_deleted_mount_are_revoked(
    store: Store, tokens: TokenStore, tmp_path: Path
) -> None:
    await store.write(lambda tx: tokens.add(tx, issued(MOUNT), "a secret"))
    async with opening(store, tokens, tmp_path):
        assert store.read(lambda db: stored.find(db, "a-1")) is None
