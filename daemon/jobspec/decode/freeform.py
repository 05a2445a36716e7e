"""Blocks with arbitrary names: configuration of drivers, proxies and scaling policies.

A nested block becomes a list of maps, with one map for each block of its type. The first version of
the language passed such lists to drivers. If the value of an argument is an object literal, it also
becomes a list, with one map. If any other expression results in an object, it stays a map.
"""

from daemon.jobspec.decode.bodies import properties
from daemon.jobspec.hcl.evaluate import evaluate
from daemon.jobspec.hcl.number import Number, to_json
from daemon.jobspec.hcl.scope import BudgetExceeded, Scope
from daemon.jobspec.hcl.source import Diagnostic, HclError
from daemon.jobspec.hcl.tree import Argument, Block, Body, Expression, ObjectExpr
from daemon.jobspec.hcl.values import Value, attributes, elements
from storage.records.codec import Document


def free_form(body: Body | ObjectExpr, scope: Scope) -> Document:
    """Return the contents of a free-form block. Raises `HclError`."""
    problems: list[Diagnostic] = []
    document: Document = {}
    if isinstance(body, ObjectExpr):
        for argument in properties(body, scope.source, problems).values():
            _set(document, argument.name, argument.value, scope, problems)
    else:
        for argument in body.arguments.values():
            _argument(document, argument, scope, problems)
        for block in body.blocks:
            _block(document, block, scope, problems)
    if problems:
        raise HclError(problems)
    return document


def _argument(
    document: Document, argument: Argument, scope: Scope, problems: list[Diagnostic]
) -> None:
    _set(document, argument.name, argument.value, scope, problems)
    if isinstance(argument.value, ObjectExpr) and argument.name in document:
        document[argument.name] = [document[argument.name]]


def _set(
    document: Document, name: str, node: Expression, scope: Scope, problems: list[Diagnostic]
) -> None:
    """Set a field to the value of an expression, unless it is null; add errors to `problems`."""
    try:
        value = evaluate(node, scope)
        if value is not None:
            document[name] = plain(value, node, scope)
    except BudgetExceeded:
        raise
    except HclError as error:
        problems += error.diagnostics


def _block(document: Document, block: Block, scope: Scope, problems: list[Diagnostic]) -> None:
    try:
        inner: object = free_form(block.body, scope)
    except BudgetExceeded:
        raise
    except HclError as error:
        problems += error.diagnostics
        return
    for label in reversed(block.labels):
        inner = {label.text: [inner]}
    before = document.get(block.kind)
    document[block.kind] = [*(before if isinstance(before, list) else ()), inner]


def plain(value: Value, node: Expression, scope: Scope) -> object:
    """Return a value in its JSON form."""
    if isinstance(value, bool) or not isinstance(value, Number):
        items = elements(value)
        if items is not None:
            return [plain(element, node, scope) for element in items]
        named = attributes(value)
        if named is not None:
            return {key: plain(named[key], node, scope) for key in named}
        return value
    try:
        return to_json(value)
    except OverflowError as error:
        detail = "The number is too large for JSON."
        raise scope.fault(node, "Unsuitable value", detail) from error
