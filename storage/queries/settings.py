"""Settings that are changed through the API while the daemon runs, by name."""

from storage.readers import Snapshot
from storage.writer import Transaction

OIDC_ISSUER = "oidc-issuer"

_FIND = "SELECT value FROM settings WHERE name = :name"
_PUT = """
    INSERT INTO settings (name, value) VALUES (:name, :value)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""


def find(db: Snapshot, name: str) -> str:
    """Return a setting; empty when it was never made."""
    row = db.one(_FIND, {"name": name})
    return str(row["value"]) if row else ""


def put(tx: Transaction, name: str, value: str) -> None:
    """Make a setting."""
    tx.execute(_PUT, {"name": name, "value": value})
    tx.touch("settings", f"settings/{name}")
