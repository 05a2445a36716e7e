"""Suggestions for unknown names: useful ones, at a limited cost."""

import ast
import time

import pytest

from daemon.text.hints import Hints, closest
from tests.test_patterns import MODULES, name_of

MOST = 0.1  # seconds of CPU; without a limit, these searches take more than a second


@pytest.mark.parametrize(
    ("name", "found"), [("parallell", "parallel"), ("need", "needs"), ("zzz", ""), ("", "")]
)
def test_the_most_similar_name_is_suggested(name: str, found: str) -> None:
    assert closest(name, ["needs", "parallel", "when"]) == found


def test_a_request_has_few_suggestions() -> None:
    hints = Hints()
    found = [hints.of("need", ["needs"]) for _ in range(5)]
    assert found == ['; did you mean "needs"?'] * 3 + [""] * 2


@pytest.mark.parametrize("length", [30, 64, 128, 100_000])
def test_many_similar_names_are_compared_in_a_limited_time(length: int) -> None:
    known = [f"{'a' * length}{number:04}" for number in range(1000)]
    before = time.thread_time()
    closest("a" * length, known)
    assert time.thread_time() - before < MOST


def test_names_are_compared_in_one_module() -> None:
    """The command line runs for one caller, so it compares names directly."""
    users = {
        name_of(path)
        for path in MODULES
        if not name_of(path).startswith("daemon/cli/")
        for text in [path.read_text()]
        if "difflib" in text  # parsing takes long, and few modules have the name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and "difflib" in (getattr(node, "module", None), *(alias.name for alias in node.names))
    }
    assert users == {"daemon/text/hints.py", "daemon/ui/highlight.py"}  # the latter compares lines
