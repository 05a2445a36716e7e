"""The code of the process that keeps root privileges: its size and its imports are limited."""

import ast
import subprocess
import sys

from tests.test_layers import ROOT, imports_of

MOST_LINES = 4305  # lines of code; each runs as root, so a new line needs a reason
# Steward's modules that the launcher may import, apart from `daemon.launcher`.
OWN = {"daemon"}
CLIENT = "client.py"  # runs in the daemon
HERE = ROOT / "daemon" / "launcher"
SOURCES = [path for path in sorted(HERE.glob("*.py")) if path.name != CLIENT]

IMPORTED = """
import sys
import daemon.launcher.fork
print(*sorted(sys.modules))
"""


def code_lines(text: str) -> int:
    """Return how many lines hold code: no blank lines, comments and docstrings."""
    tree = ast.parse(text)
    lines: set[int] = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not is_text:
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            lines |= {*range(node.lineno, max(node.lineno, last or 0) + 1)}
    return sum(
        bool(line.strip()) and not line.strip().startswith("#")
        for number, line in enumerate(text.splitlines(), 1)
        if number in lines
    )


def test_lines_of_code_are_counted() -> None:
    assert (
        code_lines('"""A."""\n\nA = [\n    1,\n]\n\n# no\ndef f():\n    """B."""\n    return 1\n')
        >= 5
    )


def test_launcher_is_small() -> None:
    assert sum(code_lines(path.read_text()) for path in SOURCES) <= MOST_LINES


def test_launcher_imports_only_the_library_and_msgspec() -> None:
    allowed = (*sys.stdlib_module_names, "msgspec", "daemon")
    for path in SOURCES:
        assert {module.split(".")[0] for module in imports_of(path)} <= {*allowed}, path.name
        ours = {module for module in imports_of(path) if module.startswith("daemon.")}
        assert not [
            module
            for module in ours
            if not module.startswith(("daemon.launcher", *OWN - {"daemon"}))
        ]
        assert not [module for module in ours if module.startswith("daemon.launcher.client")]


def test_forked_process_has_no_other_data_in_memory() -> None:
    words = [sys.executable, "-c", IMPORTED]
    before = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    found = {*done.stdout.split()} - {*before.stdout.split()}
    ours = {part for part in found if part.split(".")[0] in ("daemon", "storage")}
    others = {part.split(".")[0] for part in found - ours} - {*sys.stdlib_module_names}
    assert {part for part in ours if not part.startswith("daemon.launcher")} == OWN
    assert others <= {"msgspec", "typing_extensions"}  # msgspec imports the second
    for name in ("trio", "tomllib", "click", "ssl", "http", "json"):
        assert name not in found
