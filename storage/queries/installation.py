"""Which installation this is."""

from storage.readers import Snapshot

_CLUSTER = "SELECT cluster_id FROM store"


def cluster_id(db: Snapshot) -> str:
    """Return the identifier that this installation got when its file was made."""
    row = db.one(_CLUSTER)
    return str(row["cluster_id"]) if row else ""


def created_at(db: Snapshot) -> int:
    """Return when the file was made."""
    row = db.one("SELECT created_at FROM store")
    return int(row["created_at"]) if row else 0
