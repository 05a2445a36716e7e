"""Encrypted values in the store, and the encrypted data keys."""

from collections.abc import Iterable
from typing import NamedTuple

from storage.read_pool import ReadSnapshot
from storage.writer import Transaction


class DataKey(NamedTuple):
    """A data key, encrypted with the root key; `salt` is set for a root key from a passphrase."""

    version: int
    salt: bytes
    wrapped: bytes


class SealedSecret(NamedTuple):
    """An encrypted value, and the path that it is bound to."""

    place: str
    sealed: bytes


_DATA_KEYS = "SELECT version, salt, wrapped FROM seal_keys ORDER BY version"
_ADD_DATA_KEY = """
    INSERT INTO seal_keys (version, salt, wrapped, created_at)
    VALUES (:version, :salt, :wrapped, :created_at)
"""
_FORGET_DATA_KEYS = "DELETE FROM seal_keys"
_FIND = "SELECT sealed FROM secrets WHERE place = :place"
_BELOW = """
    SELECT place, sealed FROM secrets
     WHERE place >= :prefix AND place < :prefix || char(1114111)
  ORDER BY place
"""
_PLACES = """
    SELECT place FROM secrets
     WHERE place >= :prefix AND place < :prefix || char(1114111)
  ORDER BY place
"""
_PUT = """
    INSERT INTO secrets (place, sealed) VALUES (:place, :sealed)
    ON CONFLICT (place) DO UPDATE SET sealed = excluded.sealed
"""
_REMOVE = "DELETE FROM secrets WHERE place = :place"


def data_keys(db: ReadSnapshot) -> list[DataKey]:
    """Return the data keys, oldest first."""
    return [DataKey(row["version"], row["salt"], row["wrapped"]) for row in db.all(_DATA_KEYS)]


def find(db: ReadSnapshot, path: str) -> bytes | None:
    """Return the encrypted value at a path, or None."""
    row = db.one(_FIND, {"place": path})
    return bytes(row["sealed"]) if row else None


def below(db: ReadSnapshot, prefix: str = "") -> list[SealedSecret]:
    """Return the encrypted values at paths with a prefix, by path."""
    return [SealedSecret(row["place"], row["sealed"]) for row in db.all(_BELOW, {"prefix": prefix})]


def places(db: ReadSnapshot, prefix: str) -> list[str]:
    """Return the sorted paths of the encrypted values whose path begins with a prefix."""
    return [row["place"] for row in db.all(_PLACES, {"prefix": prefix})]


def put(tx: Transaction, path: str, sealed: bytes) -> None:
    """Store an encrypted value."""
    tx.execute(_PUT, {"place": path, "sealed": sealed})


def remove(tx: Transaction, path: str) -> None:
    """Delete the value at a path."""
    tx.execute(_REMOVE, {"place": path})


def replace_data_keys(tx: Transaction, keys: Iterable[DataKey], now: int) -> None:
    """Replace all data keys."""
    tx.execute(_FORGET_DATA_KEYS, {})
    for key in keys:
        tx.execute(_ADD_DATA_KEY, {**key._asdict(), "created_at": now})
