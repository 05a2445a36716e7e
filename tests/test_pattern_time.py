"""Regular expressions of the code take linear time, for each way in which the code runs them.

The interpreter holds all threads during a search. So a pattern with quadratic time delays the event
loop, even if another thread runs it. The test runs each pattern over repeated texts, which is the
input that makes such patterns slow.
"""

import ast
import importlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_patterns import MODULES, ROOT, name_of

SIZE = 4_000  # characters
MOST = 0.02  # seconds of CPU: linear patterns take less than 1 ms, quadratic ones more than 50 ms
MATCHES = frozenset({"match", "fullmatch", "prefixmatch"})
SEARCHES = frozenset({"search", "findall", "finditer", "split", "sub", "subn"})
UNITS = (
    *(
        "\n",
        "\r\n",
        " ",
        "\t",
        "a",
        "A",
        "0",
        "9",
        ".",
        "-",
        "_",
        "/",
        "\\",
        '"',
        "'",
        "{",
        "${",
        "$",
    ),
    *(
        "%",
        "(",
        "[",
        "<",
        "/*",
        "#",
        "//",
        "=",
        "a=",
        "a ",
        "a\n",
        " \n",
        "a.",
        "0.",
        "1,",
        "a,",
        ",",
    ),
    *(":", "a:", "+", "@", "&", "é", "''", '\\"', "<th ", "<tr", "*", '"a"', '"a" ', "[\\w", "0-"),
    *("${a", "[1]", "a[1]", "(?", "|", "^", "0s", "1h", "*/", "\r"),
)
ENDS = ("", "!", "\0", "x")
# The command line runs for one caller.
PLACES = [path for path in MODULES if not name_of(path).startswith("daemon/cli/")]
# Patterns whose texts are bounded, with the bound.
BOUNDED = {
    "daemon/text/json_masks.py:_TOKEN": "complete JSON of the daemon: each text has its end",
    "daemon/ui/tables.py:_CELL": "HTML of the daemon: each tag has its end",
    "daemon/ui/tables.py:_TAG": "the same",
}

Use = tuple[re.Pattern[str] | re.Pattern[bytes], str]  # a pattern, and a method that runs it


def uses(path: Path) -> Iterator[tuple[str, Use]]:
    """Yield the patterns that a module runs, each with its name and the method."""
    module = importlib.import_module(name_of(path).removesuffix(".py").replace("/", "."))
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, method = node.func.value, node.func.attr
        if method not in MATCHES | SEARCHES or not isinstance(owner, ast.Name):
            continue
        if owner.id == "re" and node.args and isinstance(node.args[0], ast.Constant):
            text = node.args[0].value
            yield repr(text)[:60], (re.compile(text), method)
        pattern = getattr(module, owner.id, None)
        if isinstance(pattern, re.Pattern):
            yield owner.id, (pattern, method)


def slowest(pattern: re.Pattern[str] | re.Pattern[bytes], method: str) -> tuple[float, str]:
    """Return the CPU time of the slowest text, and a description of the text."""
    run = "search" if method in SEARCHES else method
    found = (0.0, "")
    for unit in UNITS:
        for end in ENDS:
            text = unit * (SIZE // len(unit)) + end
            spent = _time(pattern, run, text)
            if spent > MOST:  # again, because another process may have taken the caches
                spent = _time(pattern, run, text)
            found = max(found, (spent, f"{SIZE} characters of {unit!r}, then {end!r}"))
            if spent > MOST:
                return found
    return found


def _time(pattern: re.Pattern[str] | re.Pattern[bytes], method: str, text: str) -> float:
    given = text.encode() if isinstance(pattern.pattern, bytes) else text
    before = time.thread_time()
    getattr(pattern, method)(given)
    return time.thread_time() - before


def test_no_pattern_takes_quadratic_time() -> None:
    known: dict[tuple[str | bytes, int, str], tuple[float, str]] = {}
    slow = {}
    for path in PLACES:
        for name, (pattern, method) in uses(path):
            key = (pattern.pattern, pattern.flags, "search" if method in SEARCHES else method)
            if key not in known:
                known[key] = slowest(pattern, method)
            spent, text = known[key]
            where = f"{name_of(path)}:{name}"
            if spent > MOST and where not in BOUNDED:
                slow[where] = f"{method}: {spent:.3f} s for {text}"
    assert slow == {}


def test_each_exemption_is_needed() -> None:
    present = {f"{name_of(path)}:{name}" for path in PLACES for name, _ in uses(path)}
    assert BOUNDED.keys() - present == set()


@pytest.mark.parametrize(
    ("text", "method"),
    [
        (r"([0-9]+\.?[0-9]*)(s|m)", "match"),
        (r"(?:\r\n?|\n)*+\Z", "search"),
        (r"(\d+\.?\d*)(e\d+)?", "fullmatch"),
    ],
)
def test_quadratic_pattern_is_detected(text: str, method: str) -> None:
    spent, _ = slowest(re.compile(text), method)
    assert spent > MOST


def test_modules_of_the_daemon_are_searched() -> None:
    assert ROOT / "daemon/web/parameters.py" in PLACES
