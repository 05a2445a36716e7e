"""The changes of the mutation tests: changed code, and text that is not code."""

import ast
from pathlib import Path

import pytest

from bench.mutants.changes import mutants, mutated


def texts(tmp_path: Path, source: str) -> list[str]:
    """Return the source text of each mutant of a source text."""
    file = tmp_path / "module.py"
    file.write_text(source)
    return [ast.unparse(mutated(mutant)) for mutant in mutants(file)]


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("x = a < b", ["x = a <= b"]),
        ("x = a in b", ["x = a not in b"]),
        ("x = a and b", ["x = a or b"]),
        ("x = not a", ["x = a"]),
        ("x = a + 1", ["x = a - 1", "x = a + 2"]),
        ("x = True", ["x = False"]),
        ("x = a if b else c", ["x = a", "x = c"]),
        ("f(a)", ["pass"]),
        ("while a:\n    break", ["while a:\n    continue"]),
        ("if a:\n    b = c", ["if True:\n    b = c", "if False:\n    b = c"]),
        ("def f():\n    return a", ["def f():\n    return None"]),
        ("def f():\n    raise E", ["def f():\n    pass"]),
    ],
)
def test_each_change_creates_one_mutant(tmp_path: Path, source: str, changed: list[str]) -> None:
    assert texts(tmp_path, source) == changed


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "import a",
        "def f(a: int = b) -> list[1]:\n    return None",
        "class A(B, frozen=True):\n    pass",
        "__all__ = [1]",
        "if TYPE_CHECKING:\n    import a",
        "log.warning('a')",
        "x = 'a' + b",
    ],
)
def test_text_annotations_and_logs_are_not_changed(tmp_path: Path, source: str) -> None:
    assert texts(tmp_path, source) == []


def test_mutant_names_its_line_and_the_change(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("def f(a):\n    return (\n        a == 1\n    )\n")
    found = [(mutant.line, mutant.statement, mutant.text) for mutant in mutants(file)]
    assert found == [
        (2, 2, "return a == 1  →  return None"),
        (3, 2, "a == 1  →  a != 1"),
        (3, 2, "1  →  2"),
    ]
    assert not any(mutant.is_executed_at_import for mutant in mutants(file))
