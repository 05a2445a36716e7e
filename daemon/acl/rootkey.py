"""The root key, which encrypts the store's data keys and is not in the store.

It comes from a key file that only the daemon's user can read, from a systemd credential, or from a
passphrase. A development daemon creates a key file in its data directory. Any other daemon creates
it outside the data directory at the first start, so that no copy of the data contains the key.

A key file is replaced in two steps. Before the write that encrypts everything again, the new key is
stored in `root.key.next`. After the write, this file replaces the key file. After a crash at any
time, one of the two keys is valid, and the next start finishes the replacement.
"""

import base64
import binascii
import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from daemon.config.data_directory import find_store
from daemon.config.settings import Settings
from storage.errors import Invalid
from storage.schema import fsync_path

KEY_SIZE = 32
MIN_PASSPHRASE = 12  # characters
CREDENTIAL = "root-key"  # systemd credentials (LoadCredential=)
PASSPHRASE_CREDENTIAL = "passphrase"  # noqa: S105  # the name of a credential
_FILE_NAME = "root.key"

# A guess costs 32 MiB and a tenth of a second.
_SCRYPT = {"n": 2**15, "r": 8, "p": 1, "maxmem": 64 * 1024 * 1024, "dklen": KEY_SIZE}

Ask = Callable[[str], str]


class RootKey:
    """A root key; `origin` describes its source for messages."""

    def __init__(self, secret: bytes, origin: str, *, is_passphrase: bool = False) -> None:
        self._secret = secret
        self.origin = origin
        self.is_passphrase = is_passphrase

    def wrapping_key(self, salt: bytes) -> bytes:
        """Return the key that wraps data keys. A passphrase is converted to a key with `salt`."""
        if not self.is_passphrase:
            return self._secret
        return hashlib.scrypt(self._secret, salt=salt, **_SCRYPT)


class KeySource(Protocol):
    """The source of a root key."""

    def take(self) -> RootKey:
        """Return the key for a new store; create it if the source allows that."""
        ...

    def candidates(self) -> list[RootKey]:
        """Return the keys that may have encrypted the store. Raises `Invalid` if there are none."""
        ...

    def settle(self, used: RootKey) -> None:
        """Finish an interrupted replacement: `used` is the valid key."""
        ...


class ConfiguredKey:
    """A root key from a credential or a passphrase."""

    def __init__(self, key: RootKey) -> None:
        self._key = key

    def take(self) -> RootKey:
        """Return the key."""
        return self._key

    def candidates(self) -> list[RootKey]:
        """Return the key as the only candidate."""
        return [self._key]

    def settle(self, used: RootKey) -> None:
        """Do nothing: there is only one key."""


class ReadKey:
    """A key that was read in advance, because the process cannot read the key file later."""

    def __init__(self, source: KeySource, *, is_new: bool) -> None:
        """Read the key. If the store `is_new`, the key may be created. Raises `Invalid`."""
        self._keys = [source.take()] if is_new else source.candidates()

    def take(self) -> RootKey:
        """Return the key."""
        return self._keys[0]

    def candidates(self) -> list[RootKey]:
        """Return the keys that were read."""
        return self._keys

    def settle(self, used: RootKey) -> None:
        """Do nothing: the source was settled when the key was read."""


class KeyFile:
    """A file with a key, and the file with the next key during a replacement."""

    def __init__(self, path: Path, *, may_make: bool) -> None:
        self.path = path
        self._next = path.with_name(f"{path.name}.next")
        self._may_make = may_make

    @property
    def is_being_replaced(self) -> bool:
        """Return whether there is a second key, because a replacement was interrupted."""
        return os.path.lexists(self._next)

    def take(self) -> RootKey:
        """Return the key in the file; create it if that is allowed. Raises `Invalid`."""
        if self._may_make and not self.path.exists():
            _write(self.path, os.urandom(KEY_SIZE))
        return _read(self.path)

    def candidates(self) -> list[RootKey]:
        """Return the key in the file, and the next key. Raises `Invalid`."""
        keys = [_read(path) for path in (self.path, self._next) if os.path.lexists(path)]
        if not keys:
            raise Invalid(
                f"the store is sealed, and there is no key file {self.path}: put it back, or name "
                "it with --key-file"
            )
        return keys

    def settle(self, used: RootKey) -> None:
        """Keep the file that contains the key in use, and delete the other file."""
        if used.origin == str(self._next):
            self.finish()
        else:
            self._next.unlink(missing_ok=True)
        _unfinished(self._next).unlink(missing_ok=True)

    def begin(self) -> RootKey:
        """Create the next key, and return it."""
        return _write(self._next, os.urandom(KEY_SIZE))

    def finish(self) -> None:
        """Replace the old key with the next key."""
        self._next.replace(self.path)
        fsync_path(self.path.parent)


def find_key_source(config: Settings, environment: Mapping[str, str], ask: Ask) -> KeySource:
    """Return the source of the root key; `ask` prompts for a passphrase. Raises `Invalid`."""
    if config.ask_passphrase:
        return ConfiguredKey(key_from_passphrase(ask("Passphrase: "), "this passphrase"))
    if config.key_file != Path():
        return KeyFile(config.key_file, may_make=False)
    if directory := environment.get("CREDENTIALS_DIRECTORY"):
        if (file := Path(directory) / CREDENTIAL).exists():
            return ConfiguredKey(RootKey(_key_in(file.read_bytes(), str(file)), str(file)))
        if (file := Path(directory) / PASSPHRASE_CREDENTIAL).exists():
            words = file.read_text().rstrip("\n")
            return ConfiguredKey(key_from_passphrase(words, str(file)))
    path = find_store(config.data_dir) / _FILE_NAME if config.dev else default_key_file(environment)
    return KeyFile(path, may_make=True)


def default_key_file(environment: Mapping[str, str]) -> Path:
    """Return the default path of the key file."""
    if os.geteuid() == 0:
        return Path("/etc/steward") / _FILE_NAME
    base = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "steward" / _FILE_NAME


def key_from_passphrase(words: str, origin: str) -> RootKey:
    """Return a passphrase as a root key. Raises `Invalid` if it is too short."""
    if len(words) < MIN_PASSPHRASE:
        raise Invalid(f"{origin} has fewer than {MIN_PASSPHRASE} characters: choose a longer one")
    return RootKey(words.encode(), origin, is_passphrase=True)


def new_key_file(path: Path) -> RootKey:
    """Return the key in a file; create it if it does not exist. Raises `Invalid`."""
    return KeyFile(path, may_make=True).take()


def _read(path: Path) -> RootKey:
    """Return the key in a file that no other user can read. Raises `Invalid`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Invalid(f"cannot read the key file {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise Invalid(f"the key file {path} is not a file")
        if state.st_uid != os.geteuid():
            raise Invalid(
                f"the key file {path} belongs to another user: chown it to the daemon's user"
            )
        if stat.S_IMODE(state.st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
            raise Invalid(f"other users can read the key file {path}: chmod 600 {path}")
        return RootKey(_key_in(file.read(1024), str(path)), str(path))


def _key_in(content: bytes, origin: str) -> bytes:
    """Return a key from its 32 bytes, or from their hexadecimal or base64 form.

    Raises `Invalid`, which names the `origin` of the content.
    """
    if len(content) == KEY_SIZE:
        return content
    for decode in (bytes.fromhex, base64.b64decode):
        try:
            key = decode(content.decode().strip())
        except (ValueError, UnicodeDecodeError, binascii.Error):
            continue
        if len(key) == KEY_SIZE:
            return key
    raise Invalid(
        f"{origin} does not contain a key of {KEY_SIZE} bytes, in binary, hexadecimal or base64 "
        "form: create one with openssl rand -hex 32"
    )


def _write(path: Path, key: bytes) -> RootKey:
    """Write a key file atomically."""
    unfinished = _unfinished(path)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.hex().encode() + b"\n")
            file.flush()
            os.fsync(descriptor)
        unfinished.replace(path)
        fsync_path(path.parent)
    except OSError as error:
        raise Invalid(
            f"cannot write the key file {path}: {error.strerror}; name another path with --key-file"
        ) from error
    return RootKey(key, str(path))


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.unfinished")
