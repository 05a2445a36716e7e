"""Signing keys of workload identity tokens."""

import sqlite3

from storage.queries import secrets
from storage.queries.documents import decode_row
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.signing import PublicKey, SigningKey
from storage.writer import Transaction

TOPIC = "signing-keys"

_EVERY = (
    "SELECT id, public, created_at, signs_from FROM signing_keys ORDER BY signs_from, created_at"
)
_ACTIVE = """
    SELECT id FROM signing_keys WHERE signs_from <= :now ORDER BY signs_from DESC LIMIT 1
"""
_ADD = """
    INSERT INTO signing_keys (id, public, created_at, signs_from)
    VALUES (:id, :public, :created_at, :signs_from)
"""
_REMOVE = "DELETE FROM signing_keys WHERE id = :id"
# Keys of non-terminal allocations. The capacity of the nodes limits their number.
_OF_LIVE_ALLOCATIONS = """
    SELECT DISTINCT placement ->> '$.SigningKeyID' AS id FROM allocations
     WHERE client_status >= 'pending' AND json_valid(placement)
"""


def key_path(key_id: str) -> str:
    """Return the path of a private key."""
    return f"signing-keys/{key_id}"


def _from(row: sqlite3.Row) -> SigningKey:
    return SigningKey(
        public=decode_row(row, PublicKey, "signing_keys", "public"),
        created_at=row["created_at"],
        signs_from=row["signs_from"],
    )


def list_all(db: ReadSnapshot) -> list[SigningKey]:
    """Return the keys, in the order in which they sign."""
    return [_from(row) for row in db.all(_EVERY)]


def active(db: ReadSnapshot, now: int) -> str:
    """Return the ID of the current signing key; empty if no key signs at this time."""
    row = db.one(_ACTIVE, {"now": now})
    return str(row["id"]) if row else ""


def private_key(db: ReadSnapshot, key_id: str) -> bytes | None:
    """Return the encrypted private key of a key ID, or None."""
    return secrets.find(db, key_path(key_id))


def of_live_allocations(db: ReadSnapshot) -> set[str]:
    """Return the IDs of the keys that signed the identity tokens of non-terminal allocations."""
    return {row["id"] for row in db.all(_OF_LIVE_ALLOCATIONS) if row["id"]}


def add(tx: Transaction, key: SigningKey, sealed: bytes) -> None:
    """Store a new key with its encrypted private key."""
    tx.execute(
        _ADD,
        {
            "id": key.id,
            "public": encode(key.public).decode(),
            "created_at": key.created_at,
            "signs_from": key.signs_from,
        },
    )
    secrets.put(tx, key_path(key.id), sealed)
    tx.touch("signing_keys", TOPIC)


def remove(tx: Transaction, key_id: str) -> None:
    """Delete a key; its tokens can no longer be verified."""
    tx.execute(_REMOVE, {"id": key_id})
    secrets.remove(tx, key_path(key_id))
    tx.touch("signing_keys", TOPIC)
