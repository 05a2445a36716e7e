"""The identity of this installation."""

from storage.read_pool import ReadSnapshot

_CLUSTER = "SELECT cluster_id FROM store"


def cluster_id(db: ReadSnapshot) -> str:
    """Return the cluster ID, assigned when the store was created."""
    row = db.one(_CLUSTER)
    return str(row["cluster_id"]) if row else ""


def created_at(db: ReadSnapshot) -> int:
    """Return the creation time of the store."""
    row = db.one("SELECT created_at FROM store")
    return int(row["created_at"]) if row else 0
