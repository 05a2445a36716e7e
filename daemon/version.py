"""The version. The build reads it from here, so no start looks it up."""

from collections.abc import Mapping

VERSION = "0.1.0"


def build() -> Mapping[str, str]:
    """Return `Commit` and `Built` as recorded by packaging/build, or nothing in a source tree."""
    import json  # rarely needed
    from importlib import resources

    note = resources.files("daemon").joinpath("build.json")
    found: Mapping[str, str] = json.loads(note.read_text()) if note.is_file() else {}
    return found
