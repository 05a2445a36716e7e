"""Write the keys of job files in HCL, for completion in the editor of the web interface.

python packaging/editor/keys.py
"""

import json
from pathlib import Path

from daemon.jobspec.decode.schema import BlockSchema, ChildBlock, TextMap
from daemon.jobspec.decode.tables.job import JOB
from daemon.jobspec.steward_meta.check import EXTENSIONS

FILE = Path(__file__).parents[2] / "daemon/ui/static/job-keys.json"
_PLACES = {"job": "job", "group": "task group", "task": "task"}
_FREE = -1  # the shape of a block with arbitrary keys


class _Shapes:
    """The shapes of blocks, by number. Blocks with the same keys share one shape."""

    def __init__(self) -> None:
        self.found: list[dict[str, object]] = []
        self._numbers: dict[tuple[int, str], int] = {}

    def number(self, schema: BlockSchema, name: str) -> int:
        """Return the number of a block's shape."""
        key = (id(schema), name if name in _PLACES else "")
        if key not in self._numbers:
            self._numbers[key] = len(self.found)
            shape: dict[str, object] = {}
            self.found.append(shape)
            shape["a"] = sorted(schema.fields)
            shape["b"] = {
                inner: self._inner(block, inner, name)
                for inner, block in sorted(schema.blocks.items())
            }
        return self._numbers[key]

    def _inner(self, block: object, name: str, around: str) -> int:
        if isinstance(block, ChildBlock):
            return self.number(block.shape, name)
        if name == "meta" and around in _PLACES and isinstance(block, TextMap):
            self.found.append({"a": _own_keys(around), "b": {}})
            return len(self.found) - 1
        return _FREE


def _own_keys(around: str) -> list[str]:
    """Return Steward's own keys in the meta of the block `around`."""
    return sorted(
        extension.name
        for extension in EXTENSIONS
        if _PLACES[around] in extension.place.split(" or ")
    )


def text() -> str:
    """Return the text of the generated file."""
    shapes = _Shapes()
    job = shapes.number(JOB, "job")
    root = {"a": [], "b": {"job": job, "variable": len(shapes.found) + 1}}
    variable = {"a": ["default", "description", "sensitive", "type"], "b": {}}
    document = {"root": len(shapes.found), "shapes": [*shapes.found, root, variable]}
    return json.dumps(document, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
