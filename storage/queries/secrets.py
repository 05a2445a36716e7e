"""Everything secret in the file: sealed, and the keys of the seals, sealed themselves."""

from collections.abc import Iterable
from typing import NamedTuple

from storage.readers import Snapshot
from storage.writer import Transaction


class DataKey(NamedTuple):
    """A key that seals, wrapped by the root key; `salt` belongs to a passphrase, if that is it."""

    version: int
    salt: bytes
    wrapped: bytes


class Secret(NamedTuple):
    """A sealed value, and the place that it is bound to."""

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
_PUT = """
    INSERT INTO secrets (place, sealed) VALUES (:place, :sealed)
    ON CONFLICT (place) DO UPDATE SET sealed = excluded.sealed
"""
_REMOVE = "DELETE FROM secrets WHERE place = :place"


def data_keys(db: Snapshot) -> list[DataKey]:
    """Return the keys of the seals, oldest first."""
    return [DataKey(row["version"], row["salt"], row["wrapped"]) for row in db.all(_DATA_KEYS)]


def find(db: Snapshot, place: str) -> bytes | None:
    """Return the sealed value of a place."""
    row = db.one(_FIND, {"place": place})
    return bytes(row["sealed"]) if row else None


def below(db: Snapshot, prefix: str = "") -> list[Secret]:
    """Return the sealed values of all places that begin with `prefix`, by place."""
    return [Secret(row["place"], row["sealed"]) for row in db.all(_BELOW, {"prefix": prefix})]


def put(tx: Transaction, place: str, sealed: bytes) -> None:
    """Keep a sealed value at its place."""
    tx.execute(_PUT, {"place": place, "sealed": sealed})


def remove(tx: Transaction, place: str) -> None:
    """Forget the value of a place."""
    tx.execute(_REMOVE, {"place": place})


def replace_data_keys(tx: Transaction, keys: Iterable[DataKey], now: int) -> None:
    """Keep these keys of the seals, and no others."""
    tx.execute(_FORGET_DATA_KEYS, {})
    for key in keys:
        tx.execute(_ADD_DATA_KEY, {**key._asdict(), "created_at": now})
