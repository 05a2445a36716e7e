"""What directories say about themselves, kept so that logins outlast an outage of theirs."""

import msgspec

from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.identity import Directory
from storage.writer import Transaction

_FIND = "SELECT document FROM directories WHERE mount = :mount"
_PUT = """
    INSERT INTO directories (mount, document) VALUES (:mount, :document)
    ON CONFLICT (mount) DO UPDATE SET document = excluded.document
"""
_FORGET = "DELETE FROM directories WHERE mount = :mount"


def find(db: Snapshot, mount: str) -> Directory | None:
    """Return what is known of the directory of the mount with this accessor."""
    row = db.one(_FIND, {"mount": mount})
    return msgspec.json.decode(row["document"], type=Directory) if row else None


def put(tx: Transaction, mount: str, directory: Directory) -> None:
    """Keep what a directory says."""
    tx.execute(_PUT, {"mount": mount, "document": encode(directory).decode()})


def forget(tx: Transaction, mount: str) -> None:
    """Forget what a directory said."""
    tx.execute(_FORGET, {"mount": mount})
