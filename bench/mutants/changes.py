"""The mutants of a file: every small change of its syntax tree."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_NOT_BEHAVIOR = ("annotation", "returns", "type_params", "decorator_list")
_NOT_CODE = ("TYPE_CHECKING", "__slots__", "__all__")


@dataclass(frozen=True)
class Mutant:
    """One change of a file: the changed node, and a text that shows the node before and after."""

    path: str
    line: int
    statement: int  # first line of the node's statement; for a jump, of the enclosing one
    node: int  # index in the order of `_places`
    change: int  # index of the change, for nodes that can change in several ways
    is_executed_at_import: bool
    uses: frozenset[int]  # of a module's private constant: the lines that read it
    text: str


def mutants(path: Path) -> list[Mutant]:
    """Return all mutants of a file, in the order of its syntax tree."""
    tree = ast.parse(path.read_text("utf-8"))
    uses = _uses(tree)
    mutant_list: list[Mutant] = []
    for index, (node, statement, in_function) in enumerate(_places(tree)):
        for change, new in enumerate(_changes(node)):
            mutant_list.append(
                Mutant(
                    str(path),
                    getattr(node, "lineno", statement),
                    statement,
                    index,
                    change,
                    not in_function,
                    uses.get(statement, frozenset()),
                    f"{_short(node)}  →  {_short(new)}",
                )
            )
    return mutant_list


def mutated(mutant: Mutant) -> ast.Module:
    """Return the syntax tree of the file with the change."""
    tree = ast.parse(Path(mutant.path).read_text("utf-8"))
    for index, (node, _, _) in enumerate(_places(tree)):
        if index == mutant.node:
            new = list(_changes(node))[mutant.change]
            _Replace(node, ast.copy_location(new, node)).visit(tree)
            return ast.fix_missing_locations(tree)
    raise LookupError(f"{mutant.path} has no node {mutant.node}")


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else super().generic_visit(node)


def _places(tree: ast.Module) -> Iterator[tuple[ast.AST, int, bool]]:
    """Yield each node that is code, the line of its statement, and whether a function contains it.

    Annotations are not code.
    """

    def walk(
        node: ast.AST, statement: int, in_function: bool
    ) -> Iterator[tuple[ast.AST, int, bool]]:
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Break | ast.Continue):
            # Python may report no line for a jump such as `break`: use the enclosing statement.
            statement = node.lineno
            if _is_not_code(node):
                return
        yield node, statement, in_function
        inside = in_function or isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        )
        for name, value in ast.iter_fields(node):
            if name in _NOT_BEHAVIOR or (name == "keywords" and isinstance(node, ast.ClassDef)):
                continue
            # The defaults of arguments are computed when the function is created.
            within = in_function if name == "args" and isinstance(value, ast.arguments) else inside
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child, statement, within)

    yield from walk(tree, 0, False)


def _uses(tree: ast.Module) -> dict[int, frozenset[int]]:
    """Return, for the line of each assignment in a module, the lines that read its private names.

    Other modules may read the other names.
    """
    by_name: dict[str, set[int]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            by_name.setdefault(node.id, set()).add(node.lineno)
    return {
        statement.lineno: frozenset().union(
            *(
                by_name.get(target.id, ())
                for target in ast.walk(_targets(statement))
                if isinstance(target, ast.Name) and target.id.startswith("_")
            )
        )
        for statement in tree.body
    }


def _is_not_code(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    head = node.test if isinstance(node, ast.If) else node
    return not isinstance(head, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and any(
        isinstance(node, ast.Name) and node.id in _NOT_CODE
        for node in ast.walk(head if isinstance(node, ast.If) else _targets(node))
    )


def _targets(node: ast.stmt) -> ast.AST:
    if isinstance(node, ast.Assign):
        return ast.Tuple(elts=node.targets)
    return node.target if isinstance(node, ast.AnnAssign) else ast.Pass()


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield each changed form of a node."""
    if isinstance(node, ast.stmt):
        yield from _changed_statements(node)
    else:
        yield from _changed_expressions(node)


def _changed_statements(node: ast.stmt) -> Iterator[ast.AST]:
    match node:
        case ast.Return(value=value) if value is not None and not _is_falsy(value):
            yield _with(node, value=ast.Constant(None))
        case ast.Raise():
            yield ast.Pass()
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case ast.Expr(value=ast.Call() | ast.Await()) if not _is_log(node.value):
            yield ast.Pass()
        case ast.If():
            yield _with(node, test=ast.Constant(True))
            yield _with(node, test=ast.Constant(False))


def _changed_expressions(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            yield _with(node, ops=[_COMPARISONS[type(op)]()])
        case ast.BoolOp():
            yield _with(node, op=ast.And() if isinstance(node.op, ast.Or) else ast.Or())
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.BinOp(left=left) if type(node.op) in _OPERATORS and not _is_text(left):
            yield _with(node, op=_OPERATORS[type(node.op)]())
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.IfExp():
            yield node.body
            yield node.orelse


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _is_falsy(node: ast.AST) -> bool:
    """Return whether a value is falsy, so that replacing it by `None` would change little."""
    return isinstance(node, ast.Constant) and not node.value


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _is_log(node: ast.AST) -> bool:
    """Return whether a call only writes to the log, because tests do not check log texts."""
    text = ast.unparse(node)
    return text.startswith(("logger.", "_LOG.", "log.", "_log."))


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split()) if not isinstance(node, ast.Pass) else "pass"
    return text if len(text) <= 90 else text[:87] + "…"
