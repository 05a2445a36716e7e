"""Which Steward this is. The build takes the version from here: nothing is looked up at a start."""

from collections.abc import Mapping

VERSION = "0.1.0"


def build() -> Mapping[str, str]:
    """Return what packaging/build has noted: `Commit` and `Built`; nothing elsewhere."""
    import json  # asked for seldom
    from importlib import resources

    note = resources.files("daemon").joinpath("build.json")
    found: Mapping[str, str] = json.loads(note.read_text()) if note.is_file() else {}
    return found
