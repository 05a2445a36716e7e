"""The encryption: a value decrypts only with its key at its path. The root key can be replaced."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from cryptography.exceptions import InvalidTag
from hypothesis import given
from hypothesis import strategies as st

from daemon.acl import rootkey
from daemon.acl import seal as seal_module
from daemon.acl.rootkey import ConfiguredKey, KeyFile, RootKey
from daemon.acl.seal import EnvelopeCipher, fitting, open_seal, replace_root_key
from daemon.admin import rekey as command
from daemon.config.settings import Settings
from storage.errors import Unsealable, leaf_errors
from storage.queries import secrets
from storage.store import FILE_NAME, Store, open_store
from tests.samples import NOW

KEY = ConfiguredKey(RootKey(b"k" * 32, "key"))
OTHER = ConfiguredKey(RootKey(b"o" * 32, "other key"))
WORDS = ConfiguredKey(rootkey.key_from_passphrase("correct horse battery", "words"))


@given(st.binary(max_size=200), st.text(max_size=50))
def test_encrypted_value_can_be_decrypted(plain: bytes, place: str) -> None:
    seal = EnvelopeCipher({1: bytes(32)})
    sealed = seal.seal(plain, place)
    assert seal.unseal(sealed, place) == plain
    assert len(plain) < 4 or plain not in sealed


def test_repeated_encryption_gives_different_ciphertexts() -> None:
    seal = EnvelopeCipher({1: bytes(32)})
    assert seal.seal(b"x", "a") != seal.seal(b"x", "a")


@pytest.mark.parametrize(
    "change",
    [
        lambda sealed: sealed[:-1],
        lambda sealed: sealed[:-1] + bytes([sealed[-1] ^ 1]),
        lambda sealed: sealed[:10] + bytes([sealed[10] ^ 1]) + sealed[11:],
        lambda sealed: b"\x02" + sealed[1:],
        lambda sealed: sealed[:1] + b"\x00\x00\x00\x09" + sealed[5:],
        lambda sealed: sealed[:4],
        lambda sealed: sealed[:9],
        lambda sealed: b"",
    ],
)
def test_changed_ciphertext_cannot_be_decrypted(change: Callable[[bytes], bytes]) -> None:
    seal = EnvelopeCipher({1: bytes(32)})
    with pytest.raises(Unsealable):
        seal.unseal(change(seal.seal(b"value", "place")), "place")


def test_ciphertext_moved_to_another_path_cannot_be_decrypted() -> None:
    seal = EnvelopeCipher({1: bytes(32)})
    with pytest.raises(Unsealable, match="misplaced"):
        seal.unseal(seal.seal(b"value", "variables/default/a"), "variables/default/b")


async def keep(store: Store, seal: EnvelopeCipher, place: str, value: bytes) -> None:
    sealed = seal.seal(value, place)
    await store.write(lambda tx: secrets.put(tx, place, sealed))


def opened(store: Store, seal: EnvelopeCipher, place: str) -> bytes:
    sealed = store.read(lambda db: secrets.find(db, place))
    assert sealed is not None
    return seal.unseal(sealed, place)


@pytest.mark.parametrize("source", [KEY, WORDS])
async def test_store_opens_with_its_original_key(store: Store, source: ConfiguredKey) -> None:
    await keep(store, await open_seal(store, source, NOW), "a", b"secret")
    assert opened(store, await open_seal(store, source, NOW), "a") == b"secret"


@pytest.mark.parametrize(("made", "tried"), [(KEY, OTHER), (KEY, WORDS), (WORDS, KEY)])
async def test_a_store_does_not_open_with_another_key(
    store: Store, made: ConfiguredKey, tried: ConfiguredKey
) -> None:
    await open_seal(store, made, NOW)
    with pytest.raises(Unsealable, match="was not sealed with"):
        await open_seal(store, tried, NOW)


async def test_data_key_moved_to_another_row_cannot_be_decrypted(store: Store) -> None:
    await open_seal(store, KEY, NOW)
    (key,) = store.read(secrets.data_keys)
    moved = key._replace(version=key.version + 1)
    with pytest.raises(InvalidTag):
        seal_module._unwrap(moved, KEY.take())


async def test_after_rotation_only_the_new_root_key_opens_the_store(store: Store) -> None:
    await keep(store, await open_seal(store, KEY, NOW), "a", b"secret")
    assert await replace_root_key(store, KEY, WORDS.take(), NOW) == 1
    assert opened(store, await open_seal(store, WORDS, NOW), "a") == b"secret"
    with pytest.raises(Unsealable):
        await open_seal(store, KEY, NOW)


async def test_root_key_rotation_reencrypts_every_data_key(store: Store) -> None:
    old = await open_seal(store, KEY, NOW)
    await keep(store, old, "a", b"secret")
    await replace_root_key(store, KEY, OTHER.take(), NOW)
    with pytest.raises(Unsealable):
        opened(store, old, "a")
    assert [key.version for key in store.read(secrets.data_keys)] == [2]


async def test_fitting_key_is_the_candidate_that_opens_the_store(
    store: Store, tmp_path: Path
) -> None:
    class Candidates(ConfiguredKey):
        def candidates(self) -> list[RootKey]:
            return [OTHER.take(), KEY.take()]

    assert fitting(tmp_path, Candidates(KEY.take())) == 0
    await open_seal(store, KEY, NOW)
    assert fitting(tmp_path, Candidates(KEY.take())) == 1
    with pytest.raises(Unsealable):
        fitting(tmp_path, OTHER)


def contents(home: Path) -> bytes:
    return b"".join(file.read_bytes() for file in home.glob(f"{FILE_NAME}*"))


async def test_store_file_contains_neither_secrets_nor_keys(store: Store, tmp_path: Path) -> None:
    root = b"root-key-that-nobody-may-ever-se"
    seal = await open_seal(store, ConfiguredKey(RootKey(root, "key")), NOW)
    await keep(store, seal, "a", b"a-secret-to-look-for")
    assert b"seal_keys" in contents(tmp_path)
    assert b"a-secret-to-look-for" not in contents(tmp_path)
    assert root not in contents(tmp_path)


# ---- a crash while the key is being replaced ----------------------------------------------------


class Crash(BaseException):
    """An exception that simulates a crash of the host."""


async def make_store(home: Path) -> None:
    async with open_store(home, cluster_id="c", now=NOW) as store:
        seal = await open_seal(store, KeyFile(home / "root.key", may_make=True), NOW)
        await keep(store, seal, "a", b"secret")


async def what_is_kept(home: Path) -> bytes:
    async with open_store(home, cluster_id="c", now=NOW) as store:
        seal = await open_seal(store, KeyFile(home / "root.key", may_make=False), NOW)
        return opened(store, seal, "a")


def config(home: Path) -> Settings:
    return Settings(dev=True, data_dir=home)


STEPS = [
    (os, "fsync", 0),
    (os, "fsync", 1),
    (KeyFile, "begin", 0),
    (seal_module, "_new_key", 0),
    (secrets, "replace_data_keys", 0),
    (secrets, "put", 0),
    (KeyFile, "finish", 0),
]


@pytest.mark.parametrize(("owner", "name", "calls"), STEPS)
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_crash_during_a_root_key_rotation_loses_no_data(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    calls: int,
    done: bool,
) -> None:
    trio.run(make_store, tmp_path)
    real = getattr(owner, name)
    left = [calls]

    def stops(*args: object, **given: object) -> object:
        left[0] -= 1
        if left[0] >= 0:
            return real(*args, **given)
        if done:
            real(*args, **given)
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, stops)
        with pytest.raises((Crash, BaseExceptionGroup)) as caught:
            command.replace_key(config(tmp_path), key_file=None, ask=False)
    assert any(isinstance(error, Crash) for error in leaf_errors(caught.value))
    assert trio.run(what_is_kept, tmp_path) == b"secret"
    assert trio.run(what_is_kept, tmp_path) == b"secret"
    assert sorted(path.name for path in tmp_path.glob("*.key*")) == ["root.key"]
