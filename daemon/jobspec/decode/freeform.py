"""Blocks whose names are free: what a driver, a proxy or a scaling policy is told.

A nested block becomes a list of maps, one for each block of its kind, because that is what
drivers were told by the first version of the language; and so does an object that is written out
as the value of an argument. The same object from anywhere else stays a map.
"""

from daemon.jobspec.hcl.evaluate import evaluate
from daemon.jobspec.hcl.number import Number, to_json
from daemon.jobspec.hcl.scope import Exhausted, Scope
from daemon.jobspec.hcl.source import Diagnostic, Faulty
from daemon.jobspec.hcl.tree import Argument, Block, Body, Expression, Object, key_text
from daemon.jobspec.hcl.values import Value, attributes, elements
from storage.records.codec import Document


def free_form(body: Body | Object, scope: Scope) -> Document:
    """Return what a free-form block holds. Raises `Faulty`."""
    problems: list[Diagnostic] = []
    document: Document = {}
    if isinstance(body, Object):
        for key, value in body.items:
            _set(document, key_text(key) or "", value, scope, problems)
    else:
        for argument in body.arguments.values():
            _argument(document, argument, scope, problems)
        for block in body.blocks:
            _block(document, block, scope, problems)
    if problems:
        raise Faulty(problems)
    return document


def _argument(
    document: Document, argument: Argument, scope: Scope, problems: list[Diagnostic]
) -> None:
    _set(document, argument.name, argument.value, scope, problems)
    if isinstance(argument.value, Object) and argument.name in document:
        document[argument.name] = [document[argument.name]]


def _set(
    document: Document, name: str, node: Expression, scope: Scope, problems: list[Diagnostic]
) -> None:
    """Put a value under a name; null is left out."""
    try:
        value = evaluate(node, scope)
        if value is not None:
            document[name] = plain(value, node, scope)
    except Exhausted:
        raise
    except Faulty as error:
        problems += error.diagnostics


def _block(document: Document, block: Block, scope: Scope, problems: list[Diagnostic]) -> None:
    try:
        inner: object = free_form(block.body, scope)
    except Exhausted:
        raise
    except Faulty as error:
        problems += error.diagnostics
        return
    for label in reversed(block.labels):
        inner = {label.text: [inner]}
    before = document.get(block.kind)
    document[block.kind] = [*(before if isinstance(before, list) else ()), inner]


def plain(value: Value, node: Expression, scope: Scope) -> object:
    """Return a value as JSON has it."""
    if isinstance(value, bool) or not isinstance(value, Number):
        items = elements(value)
        if items is not None:
            return [plain(item, node, scope) for item in items]
        named = attributes(value)
        if named is not None:
            return {key: plain(named[key], node, scope) for key in named}
        return value
    try:
        return to_json(value)
    except OverflowError as error:
        detail = "The number is larger than JSON can carry."
        raise scope.fault(node, "Unsuitable value", detail) from error
