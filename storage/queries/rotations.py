"""The state of each mount's client secret rotation."""

from storage.queries.documents import decode_row
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.identity import Rotation
from storage.writer import Transaction

_FIND = "SELECT mount, document FROM secret_rotations WHERE mount = :mount"
_PUT = """
    INSERT INTO secret_rotations (mount, document) VALUES (:mount, :document)
    ON CONFLICT (mount) DO UPDATE SET document = excluded.document
"""
_FORGET = "DELETE FROM secret_rotations WHERE mount = :mount"


def find(db: ReadSnapshot, mount: str) -> Rotation | None:
    """Return the rotation state of a mount, or None."""
    row = db.one(_FIND, {"mount": mount})
    return decode_row(row, Rotation, "secret_rotations") if row else None


def put(tx: Transaction, mount: str, rotation: Rotation) -> None:
    """Store the rotation state of a mount."""
    tx.execute(_PUT, {"mount": mount, "document": encode(rotation).decode()})


def forget(tx: Transaction, mount: str) -> None:
    """Delete the rotation state of a mount."""
    tx.execute(_FORGET, {"mount": mount})
