"""The mutation tests: changes of the code, replaced functions, and the order of the tests."""

import ast
import runpy
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from bench.mutants.__main__ import ROOT, explained, source_line
from bench.mutants.changes import mutants, mutated
from bench.mutants.judge import FAST, replace_code, select_tests
from bench.mutants.lines import RecordedTest


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


def test_import_executes_defaults_of_arguments(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("def f(a=1, *, b=2):\n    return lambda c=3: d\n")
    found = {mutant.text: mutant.is_executed_at_import for mutant in mutants(file)}
    assert found == {
        "1  →  2": True,
        "2  →  3": True,
        "return lambda c=3: d  →  return None": False,
        "3  →  4": False,
    }


def replaced(
    tmp_path: Path, source: str, text: str, *names: str
) -> tuple[bool, list[Callable[..., Any]]]:
    """Replace the code of the functions `names` by the mutant with this text.

    Return whether a function changed, and the functions.
    """
    file = tmp_path / "module.py"
    file.write_text(source)
    module = runpy.run_path(str(file))
    functions: list[FunctionType] = [module[name] for name in names]
    (mutant,) = (mutant for mutant in mutants(file) if mutant.text == text)
    return replace_code(mutated(mutant), mutant.path, functions), [*functions]


def test_changed_function_gets_its_new_code(tmp_path: Path) -> None:
    source = "def f(a):\n    return a < 1\ndef g(a):\n    return a\n"
    has_changed, (f, g) = replaced(tmp_path, source, "a < 1  →  a <= 1", "f", "g")
    assert has_changed
    assert f(1)
    assert g(5) == 5


def test_only_the_changed_one_of_two_lambdas_in_a_line_is_replaced(tmp_path: Path) -> None:
    source = "f, g = lambda a: a < 1, lambda a: a < 2\n"
    _, (f, g) = replaced(tmp_path, source, "a < 2  →  a <= 2", "f", "g")
    assert not f(1)
    assert g(2)


def test_code_outside_of_functions_is_not_replaced(tmp_path: Path) -> None:
    has_changed, _ = replaced(tmp_path, "A = 1\ndef f():\n    return A\n", "1  →  2", "f")
    assert not has_changed


def test_tests_that_execute_the_line_run_in_turn_with_near_and_fast_ones_first(
    tmp_path: Path,
) -> None:
    file = tmp_path / "module.py"
    file.write_text("def f(a):\n    return a < 1\n")
    mutant = mutants(file)[0]
    executed, loaded = {mutant.path: "011"}, {mutant.path: "01"}
    recorded = [
        RecordedTest("", 0.0, executed),
        RecordedTest("a::slow", 2 * FAST, executed),
        RecordedTest("a::second", FAST, executed),
        RecordedTest("a::first", FAST / 2, executed),
        RecordedTest("a::other", 0.0, loaded),
        RecordedTest("b::only", FAST / 2, executed),
        RecordedTest("tests/test_module.py::near", 3 * FAST, executed),
    ]
    assert [test.id for test in select_tests(mutant, recorded)] == [
        "tests/test_module.py::near",
        "a::first",
        "b::only",
        "a::second",
        "a::slow",
    ]


def test_each_explained_mutant_exists() -> None:
    rows = explained()
    existing = {
        (file, source_line(file, mutant.line), mutant.text)
        for file in {file for file, _, _ in rows}
        for mutant in mutants(ROOT / file)
    }
    assert set(rows) <= existing
