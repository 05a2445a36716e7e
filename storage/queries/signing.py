"""The keys that sign identity tokens."""

import sqlite3

import msgspec

from storage.queries import secrets
from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.signing import PublicKey, SigningKey
from storage.writer import Transaction

TOPIC = "signing-keys"

_EVERY = "SELECT public, created_at, signs_from FROM signing_keys ORDER BY signs_from, created_at"
_ACTIVE = """
    SELECT id FROM signing_keys WHERE signs_from <= :now ORDER BY signs_from DESC LIMIT 1
"""
_ADD = """
    INSERT INTO signing_keys (id, public, created_at, signs_from)
    VALUES (:id, :public, :created_at, :signs_from)
"""
_REMOVE = "DELETE FROM signing_keys WHERE id = :id"
# The keys of what runs: of the placements there are as many as the node can hold.
_OF_LIVE_ALLOCATIONS = """
    SELECT DISTINCT placement ->> '$.SigningKeyID' AS id FROM allocations
     WHERE client_status IN ('pending', 'running', 'unknown')
"""


def place(key_id: str) -> str:
    """Return where the private half of a key is kept."""
    return f"signing-keys/{key_id}"


def _from(row: sqlite3.Row) -> SigningKey:
    return SigningKey(
        public=msgspec.json.decode(row["public"], type=PublicKey),
        created_at=row["created_at"],
        signs_from=row["signs_from"],
    )


def every(db: Snapshot) -> list[SigningKey]:
    """Return the keys, in the order in which they sign."""
    return [_from(row) for row in db.all(_EVERY)]


def active(db: Snapshot, now: int) -> str:
    """Return the id of the key that signs now; empty when there is none."""
    row = db.one(_ACTIVE, {"now": now})
    return str(row["id"]) if row else ""


def private(db: Snapshot, key_id: str) -> bytes | None:
    """Return the private half of a key, sealed."""
    return secrets.find(db, place(key_id))


def of_live_allocations(db: Snapshot) -> set[str]:
    """Return the keys that what runs was placed with."""
    return {row["id"] for row in db.all(_OF_LIVE_ALLOCATIONS) if row["id"]}


def add(tx: Transaction, key: SigningKey, sealed: bytes) -> None:
    """Store a new key, with its private half sealed."""
    tx.execute(
        _ADD,
        {
            "id": key.id,
            "public": encode(key.public).decode(),
            "created_at": key.created_at,
            "signs_from": key.signs_from,
        },
    )
    secrets.put(tx, place(key.id), sealed)
    tx.touch("signing_keys", TOPIC)


def remove(tx: Transaction, key_id: str) -> None:
    """Forget a key: what it has signed cannot be verified any more."""
    tx.execute(_REMOVE, {"id": key_id})
    secrets.remove(tx, place(key_id))
    tx.touch("signing_keys", TOPIC)
