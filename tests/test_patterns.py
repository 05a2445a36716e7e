"""Regular expressions of job authors and clients: they run in few places, each with a bound.

This test reads the syntax trees of the daemon. The interpreter's own expressions can take
exponential time, so their patterns are constants of the code. All other patterns run in
`daemon/matching/regexp.py`, in linear time and with an upper limit. A new place fails the test:
state in `BOUNDED` how it bounds the search.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted([*(ROOT / "daemon").rglob("*.py"), *(ROOT / "storage").rglob("*.py")])

# Functions of `re` whose first argument is a pattern.
WITH_PATTERN = frozenset(
    {"compile", "findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn"}
)
# Patterns that are not constants, by module and function: their parts come from the code.
FROM_CODE = {
    ("daemon/jobspec/hcl/lexer.py", "_heredoc"): "the escaped word that ends a text",
    ("daemon/launcher/process_scan.py", ""): "a prefix that is a constant of another module",
    ("daemon/launcher/programs.py", ""): "a table of forms; each repetition ends at a newline",
    ("daemon/web/router.py", "_regex"): "paths in the table of routes, with escaped literals",
    ("daemon/web/vault_router.py", "_regex"): "paths in the table of endpoints",
}
# Modules that run outside patterns, and their bound.
BOUNDED = {
    "daemon/jobspec/filters/operators.py": "steps of an object and of a request: FilterEvaluation",
    "daemon/jobspec/hcl/functions/text.py": "steps of a job file: search_cost",
    "daemon/jobspec/rules/constraints.py": "the time of a job's validation: limited",
    "daemon/jobspec/validate.py": "limits a validation",
    "daemon/scheduler/nodes/constraints.py": "one search, and the time of a decision: limited",
    "daemon/scheduler/schedule.py": "limits a decision",
    "daemon/evals/host_volumes.py": "limits the check of a volume",
    "daemon/evals/placement_explain.py": "limits an explanation",
    "daemon/evals/placement_precheck.py": "limits a check before placement",
    "daemon/templates/library.py": "steps of a template: match_cost, search_cost",
}
# The library for patterns in linear time.
WITH_LIBRARY = {"daemon/matching/regexp.py", "daemon/text/masking.py"}  # masks: escaped texts


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield each node with the name of the innermost function around it."""

    def below(node: ast.AST, where: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            inner = (
                child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else where
            )
            yield where, child
            yield from below(child, inner)

    yield from below(tree, "")


def is_constant(node: ast.expr) -> bool:
    """Return whether a pattern is a string of the code, or a constant, or made of these."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name.isupper()
        case ast.Attribute(attr=name):
            return name.isupper()
        case ast.JoinedStr(values=parts):
            return all(map(is_constant, parts))
        case ast.FormattedValue(value=value):
            return is_constant(value)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return is_constant(left) and is_constant(right)
        case ast.Call(func=ast.Attribute(attr="escape"), args=[one]):
            return is_constant(one)
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join")):
            return True
    return False


def own_patterns(text: str) -> set[str]:
    """Return the functions of a module that use `re` with a pattern that is not a constant."""
    return {
        where
        for where, node in functions(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and (node.func.value.id, node.func.attr in WITH_PATTERN) == ("re", True)
        and not (node.args and is_constant(node.args[0]))
    }


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the modules that a module imports, anywhere in it."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                found.update(name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                found.update((module, *(f"{module}.{name.name}" for name in names)))
    return frozenset(found)


def test_patterns_of_the_interpreter_are_constants() -> None:
    found = {(name_of(path), where) for path in MODULES for where in own_patterns(path.read_text())}
    assert found == set(FROM_CODE)


def test_external_patterns_run_only_with_a_limit() -> None:
    users = {name_of(path) for path in MODULES if "daemon.matching.regexp" in imported(path)}
    assert users == set(BOUNDED)


def test_only_two_modules_use_the_regexp_library() -> None:
    users = {name_of(path) for path in MODULES if "re2" in imported(path)}
    assert users == WITH_LIBRARY
    for path in MODULES:  # another library, or functions of `re` under another name
        names = imported(path)
        assert not names & {"regex", "sre_compile"}, path
        assert not any(name.startswith("re.") for name in names), path


@pytest.mark.parametrize(
    "text",
    [
        "import re\ndef f(pattern): return re.search(pattern, 'x')",
        "import re\ndef f(job): re.compile(f'^{job.name}$')",
        "import re\nasync def f(text): re.sub('a' + text, '', 'x')",
    ],
)
def test_external_pattern_is_detected(text: str) -> None:
    assert own_patterns(text) == {"f"}
