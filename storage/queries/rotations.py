"""How far the rotation of each mount's client secret is."""

import msgspec

from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.identity import Rotation
from storage.writer import Transaction

_FIND = "SELECT document FROM secret_rotations WHERE mount = :mount"
_PUT = """
    INSERT INTO secret_rotations (mount, document) VALUES (:mount, :document)
    ON CONFLICT (mount) DO UPDATE SET document = excluded.document
"""
_FORGET = "DELETE FROM secret_rotations WHERE mount = :mount"


def find(db: Snapshot, mount: str) -> Rotation | None:
    """Return how far the rotation of a mount is; None when there never was one."""
    row = db.one(_FIND, {"mount": mount})
    return msgspec.json.decode(row["document"], type=Rotation) if row else None


def put(tx: Transaction, mount: str, rotation: Rotation) -> None:
    """Note how far the rotation of a mount is."""
    tx.execute(_PUT, {"mount": mount, "document": encode(rotation).decode()})


def forget(tx: Transaction, mount: str) -> None:
    """Forget the rotation of a mount."""
    tx.execute(_FORGET, {"mount": mount})
