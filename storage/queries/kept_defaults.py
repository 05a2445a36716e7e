"""Old default values that an upgrade has preserved, by setting."""

from storage.read_pool import ReadSnapshot

_EVERY = "SELECT setting, value FROM kept_defaults ORDER BY setting"


def list_all(db: ReadSnapshot) -> dict[str, str]:
    """Return the preserved default values, encoded as JSON, by setting."""
    return {str(row["setting"]): str(row["value"]) for row in db.all(_EVERY)}
