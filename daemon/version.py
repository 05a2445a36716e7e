"""Which Steward this is."""

import json
from collections.abc import Mapping
from importlib import metadata, resources

VERSION = metadata.version("steward")


def _build() -> Mapping[str, str]:
    """Return what packaging/build has noted: `Commit` and `Built`; nothing elsewhere."""
    note = resources.files("daemon").joinpath("build.json")
    found: Mapping[str, str] = json.loads(note.read_text()) if note.is_file() else {}
    return found


BUILD = _build()
