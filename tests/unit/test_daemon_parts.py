"""The table of the daemon's parts: its order fits the dependencies, and none is missing."""

import ast
import inspect
import textwrap

import pytest

from daemon.process import parts
from daemon.process.parts import PARTS, DaemonParts, Part

PRESENT = {
    *("begun", "clock", "ids", "config", "is_ready", "is_separated", "stack", "enter", "complete")
}


def attributes_of(part: Part) -> tuple[set[str], set[str]]:
    """Return the attributes of `DaemonParts` that an opener reads and those that it sets."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(part.opens)))
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "parts"
    ]
    assigned = {node.attr for node in found if isinstance(node.ctx, ast.Store)}
    return {node.attr for node in found} - assigned - PRESENT, assigned


SETTER = {attribute: part.name for part in PARTS for attribute in attributes_of(part)[1]}
NAMES = [part.name for part in PARTS]


def test_each_part_has_a_unique_name() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_each_attribute_is_set_by_one_opener() -> None:
    assert SETTER.keys() == DaemonParts.__annotations__.keys()
    every = [attribute for part in PARTS for attribute in attributes_of(part)[1]]
    assert len(every) == len(SETTER)


@pytest.mark.parametrize("part", PARTS, ids=NAMES)
def test_part_opens_after_its_dependencies(part: Part) -> None:
    assert set(part.needs) <= set(NAMES[: NAMES.index(part.name)])


@pytest.mark.parametrize("part", PARTS, ids=NAMES)
def test_table_names_every_part_read_by_an_opener(part: Part) -> None:
    assert {SETTER[attribute] for attribute in attributes_of(part)[0]} <= set(part.needs)


async def test_opener_cannot_read_an_unopened_part() -> None:
    bare = DaemonParts.__new__(DaemonParts)
    with pytest.raises(AttributeError, match="store"):
        await parts._fences(bare)
