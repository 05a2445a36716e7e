"""Cached identity provider documents, so that logins survive an outage of the provider."""

from storage.queries.documents import decode_row
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.identity import Directory
from storage.writer import Transaction

_FIND = "SELECT mount, document FROM directories WHERE mount = :mount"
_PUT = """
    INSERT INTO directories (mount, document) VALUES (:mount, :document)
    ON CONFLICT (mount) DO UPDATE SET document = excluded.document
"""
_FORGET = "DELETE FROM directories WHERE mount = :mount"


def find(db: ReadSnapshot, mount: str) -> Directory | None:
    """Return the cached documents of the mount with this accessor, or None."""
    row = db.one(_FIND, {"mount": mount})
    return decode_row(row, Directory, "directories") if row else None


def put(tx: Transaction, mount: str, directory: Directory) -> None:
    """Store the documents of a provider."""
    tx.execute(_PUT, {"mount": mount, "document": encode(directory).decode()})


def forget(tx: Transaction, mount: str) -> None:
    """Delete the documents of a provider."""
    tx.execute(_FORGET, {"mount": mount})
