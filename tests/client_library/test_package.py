"""The library is independent: it imports only its dependencies, and its types are published."""

import ast
import re
import sys
import tomllib
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "packaging/client"
MODULES = sorted((PACKAGE / "steward_client").glob("*.py"))


def imported(module: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return {name.partition(".")[0] for name in found}


def test_modules_import_only_the_declared_dependencies() -> None:
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[^a-z]", dependency)[0] for dependency in project["dependencies"]}
    used = set[str]().union(*map(imported, MODULES)) - sys.stdlib_module_names
    assert used - {"steward_client"} == declared


def test_types_are_published() -> None:
    assert (PACKAGE / "steward_client/py.typed").exists()
