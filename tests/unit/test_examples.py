"""The examples in docstrings run, and give the documented results."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("daemon", "storage")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module_give_their_results(name: str) -> None:
    done = doctest.testmod(import_module(name))
    assert done.attempted
    assert done.failed == 0
