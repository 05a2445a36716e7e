"""Named settings that the API can change at run time."""

from storage.read_pool import ReadSnapshot
from storage.writer import Transaction

OIDC_ISSUER = "oidc-issuer"

_FIND = "SELECT value FROM settings WHERE name = :name"
_PUT = """
    INSERT INTO settings (name, value) VALUES (:name, :value)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
_REMOVE = "DELETE FROM settings WHERE name = :name"


def find(db: ReadSnapshot, name: str) -> str:
    """Return a setting; empty if it was never set."""
    row = db.one(_FIND, {"name": name})
    return str(row["value"]) if row else ""


def put(tx: Transaction, name: str, value: str) -> None:
    """Set a setting."""
    tx.execute(_PUT, {"name": name, "value": value})
    tx.touch("settings", f"settings/{name}")


def remove(tx: Transaction, name: str) -> None:
    """Delete a setting."""
    tx.execute(_REMOVE, {"name": name})
    tx.touch("settings", f"settings/{name}")
