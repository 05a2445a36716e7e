"""The root key: its sources, and refused files."""

import base64
import os
import stat
from pathlib import Path

import pytest

from daemon.acl import rootkey
from daemon.acl.rootkey import (
    KEY_SIZE,
    MIN_PASSPHRASE,
    KeyFile,
    RootKey,
    default_key_file,
    find_key_source,
    key_from_passphrase,
    new_key_file,
)
from daemon.config.data_directory import store_dir
from daemon.config.settings import Settings
from storage.errors import Invalid

KEY = bytes(range(KEY_SIZE))
WORDS = "correct horse battery staple"


def never(prompt: str) -> str:
    raise AssertionError(f"asked for {prompt}")


def key_of(config: Settings, ask: object = never, **environment: str) -> bytes:
    source = find_key_source(config, environment, ask)
    return source.take().wrapping_key(b"salt" * 4)


def write(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "content",
    [KEY, KEY.hex().encode(), KEY.hex().upper().encode() + b"\n", base64.b64encode(KEY) + b"\n"],
)
def test_key_file_contains_bytes_hex_digits_or_base64(tmp_path: Path, content: bytes) -> None:
    file = write(tmp_path / "key", content)
    assert key_of(Settings(key_file=file)) == KEY


@pytest.mark.parametrize("content", [b"", b"x", KEY + b"x", KEY.hex()[:-2].encode(), b"\xff" * 33])
def test_invalid_key_is_refused(tmp_path: Path, content: bytes) -> None:
    file = write(tmp_path / "key", content)
    with pytest.raises(Invalid, match="does not contain a key"):
        key_of(Settings(key_file=file))


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o666, 0o610])
def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = write(tmp_path / "key", KEY, mode)
    with pytest.raises(Invalid, match=f"chmod 600 {file}"):
        key_of(Settings(key_file=file))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
def test_a_key_file_of_another_user_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "key", KEY)
    os.chown(file, 65534, 65534)
    with pytest.raises(Invalid, match="belongs to another user"):
        key_of(Settings(key_file=file))


def test_a_link_to_a_key_file_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(write(tmp_path / "key", KEY))
    with pytest.raises(Invalid, match="cannot read the key file"):
        key_of(Settings(key_file=link))


def test_key_file_that_is_a_pipe_is_refused_immediately(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    with pytest.raises(Invalid, match="is not a file"):
        key_of(Settings(key_file=tmp_path / "key"))


def test_configured_key_file_is_never_created(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="No such file"):
        key_of(Settings(key_file=tmp_path / "key"))


def test_development_daemon_creates_a_key_in_its_data_directory(tmp_path: Path) -> None:
    config = Settings(dev=True, data_dir=tmp_path)
    made = key_of(config)
    assert key_of(config) == made
    assert (store_dir(tmp_path) / "root.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() == 0, reason="the key file of root is in /etc/steward")
def test_daemon_of_a_user_stores_the_key_outside_of_the_data_directory(tmp_path: Path) -> None:
    key_of(Settings(data_dir=tmp_path / "data"), XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert (tmp_path / "config" / "steward" / "root.key").exists()


def test_a_credential_of_the_service_manager_is_used(tmp_path: Path) -> None:
    write(tmp_path / "root-key", KEY, 0o440)
    config = Settings(dev=True, data_dir=tmp_path / "data")
    assert key_of(config, CREDENTIALS_DIRECTORY=str(tmp_path)) == KEY


def test_a_passphrase_can_be_a_credential(tmp_path: Path) -> None:
    write(tmp_path / "passphrase", f"{WORDS}\n".encode(), 0o440)
    found = key_of(Settings(), CREDENTIALS_DIRECTORY=str(tmp_path))
    assert found == key_from_passphrase(WORDS, "").wrapping_key(b"salt" * 4)


def test_passphrase_is_read_from_a_prompt() -> None:
    found = key_of(Settings(ask_passphrase=True), lambda prompt: WORDS)
    assert found == key_from_passphrase(WORDS, "").wrapping_key(b"salt" * 4)


def test_a_short_passphrase_is_refused() -> None:
    with pytest.raises(Invalid, match="fewer than 12 characters"):
        key_of(Settings(ask_passphrase=True), lambda prompt: "short")


def test_passphrase_with_another_salt_gives_another_key() -> None:
    words = key_from_passphrase(WORDS, "")
    assert words.wrapping_key(b"a" * 16) != words.wrapping_key(b"b" * 16)


def test_missing_key_file_of_a_store_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="put it back"):
        KeyFile(tmp_path / "key", may_make=True).candidates()


def test_key_object_does_not_show_its_value() -> None:
    assert KEY.hex()[:8] not in repr(RootKey(KEY, "x")) + str(vars(RootKey(KEY, "x")).keys())


def test_passphrase_has_a_minimum_length() -> None:
    assert key_from_passphrase("x" * MIN_PASSPHRASE, "words").is_passphrase
    with pytest.raises(Invalid, match="choose a longer one"):
        key_from_passphrase("x" * (MIN_PASSPHRASE - 1), "words")


def test_key_of_a_replacement_is_on_disk_before_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[tuple[Path, bool, bool]]()
    path, following = tmp_path / "key", tmp_path / "key.next"

    def record(directory: Path) -> None:
        synced.append((directory, path.exists(), following.exists()))

    monkeypatch.setattr(rootkey, "fsync_path", record)
    source = KeyFile(path, may_make=True)
    source.take()
    assert synced == [(tmp_path, True, False)]
    source.begin()
    assert synced[1:] == [(tmp_path, True, True)]
    source.finish()
    assert synced[2:] == [(tmp_path, True, False)]


def test_key_file_in_a_directory_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "key"
    with pytest.raises(Invalid, match=f"cannot write the key file {path}: .*--key-file"):
        new_key_file(path)


def test_default_key_file_is_in_the_configuration_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_key_file({"XDG_CONFIG_HOME": "/x"}) == Path("/etc/steward/root.key")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert default_key_file({}) == Path.home() / ".config/steward/root.key"
    assert default_key_file({"XDG_CONFIG_HOME": "/x"}) == Path("/x/steward/root.key")


def test_new_key_file_gets_private_directories(tmp_path: Path) -> None:
    path = tmp_path / "etc" / "steward" / "root.key"
    made = new_key_file(path)
    assert made.wrapping_key(b"") == bytes.fromhex(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert new_key_file(path).wrapping_key(b"") == made.wrapping_key(b"")
