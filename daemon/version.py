"""The version. The build reads this constant, so the daemon need not look it up."""

from collections.abc import Mapping

VERSION = "0.1.0"


def build() -> Mapping[str, str]:
    """Return `Commit` and `Built` as packaging/build recorded them; empty in a source tree."""
    import json  # rarely needed
    from importlib import resources

    note = resources.files("daemon").joinpath("build.json")
    recorded: Mapping[str, str] = json.loads(note.read_text()) if note.is_file() else {}
    return recorded
