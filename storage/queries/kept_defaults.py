"""Defaults that an upgrade has kept, by the name of their setting."""

from storage.readers import Snapshot

_EVERY = "SELECT setting, value FROM kept_defaults ORDER BY setting"


def every(db: Snapshot) -> dict[str, str]:
    """Return the value of each setting, in JSON."""
    return {str(row["setting"]): str(row["value"]) for row in db.all(_EVERY)}
