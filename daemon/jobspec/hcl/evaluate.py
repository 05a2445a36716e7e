"""Evaluation of expressions.

Like Nomad, the evaluator reports several errors together. It evaluates all operands, elements and
arguments before it raises an error. A budget limits the work. Each step has a cost. The cost of a
reference depends on the size of its value.
"""

from collections.abc import Callable, Iterable

from daemon.jobspec.hcl import type_checks
from daemon.jobspec.hcl.calls import call
from daemon.jobspec.hcl.operators import apply, negated
from daemon.jobspec.hcl.scope import BudgetExceeded, HclFunction, Scope
from daemon.jobspec.hcl.source import MAX_SHOWN, Diagnostic, HclError
from daemon.jobspec.hcl.traversal import attribute_of, element_of
from daemon.jobspec.hcl.tree import (
    AttrStep,
    BinaryOp,
    CallExpr,
    Conditional,
    Expression,
    For,
    IndexStep,
    Interpolation,
    Literal,
    ObjectExpr,
    Parenthesized,
    Path,
    PropertyName,
    Splat,
    Step,
    TemplateExpr,
    TemplateFor,
    TemplateIf,
    TemplateWrap,
    TupleExpr,
    UnaryOp,
    VariableRef,
    opening,
)
from daemon.jobspec.hcl.typenames import read_type
from daemon.jobspec.hcl.values import ConversionError, Value, convert, elements

ELEMENT = "*"  # scope name of the current element; no text can contain it


def evaluate(node: Expression, scope: Scope) -> Value:
    """Return the value of an expression. Raises `HclError`."""
    budget = scope.budget
    budget.left -= 1
    if budget.left < 0:
        scope.spend(node, 0)  # the error reports the limit
    return _EVALUATE[type(node)](node, scope)


class _Problems:
    """A collector of errors, raised together."""

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []

    def evaluate(self, node: Expression, scope: Scope) -> Value:
        """Return the value of an expression; if it has errors, collect them and return None."""
        try:
            return evaluate(node, scope)
        except BudgetExceeded:
            raise
        except HclError as error:
            self.add(error)
            return None

    def add(self, error: HclError) -> None:
        self.found += error.diagnostics
        if len(self.found) > MAX_SHOWN:
            self.raise_any()

    def raise_any(self) -> None:
        if self.found:
            raise HclError(self.found)


def evaluate_all(nodes: Iterable[Expression], scope: Scope) -> list[Value]:
    """Return the values of expressions. Raises `HclError` with the errors of all of them."""
    problems = _Problems()
    values = [problems.evaluate(node, scope) for node in nodes]
    problems.raise_any()
    return values


# --- literals and collections ---


def _literal(node: Literal, scope: Scope) -> Value:
    return node.value


def _parenthesized(node: Parenthesized, scope: Scope) -> Value:
    return evaluate(node.inner, scope)


def _tuple(node: TupleExpr, scope: Scope) -> Value:
    return tuple(evaluate_all(node.items, scope))


def _object(node: ObjectExpr, scope: Scope) -> Value:
    problems = _Problems()
    members: dict[str, Value] = {}
    for key_node, value_node in node.items:
        value = problems.evaluate(value_node, scope)
        try:
            key = _key(key_node, value_node, scope)
            if key in members and isinstance(key_node, PropertyName):
                raise scope.fault(
                    key_node,
                    "Duplicate object attribute",
                    f'An attribute named "{key}" was already defined.',
                )
            members[key] = value
        except BudgetExceeded:
            raise
        except HclError as error:
            problems.add(error)
    problems.raise_any()
    return members


def _key(node: Expression, value_node: Expression, scope: Scope) -> str:
    if isinstance(node, VariableRef):
        raise scope.fault(
            node,
            "Ambiguous attribute key",
            "If this expression is intended to be a reference, wrap it in parentheses. If it's "
            "instead intended as a literal name containing periods, wrap it in quotes to create "
            "a string literal.",
        )
    return type_checks.key(node, evaluate(node, scope), value_node, scope)


def _property_name(node: PropertyName, scope: Scope) -> Value:
    return evaluate(node.template, scope)


# --- templates ---


def _template(node: TemplateExpr, scope: Scope) -> Value:
    if len(node.parts) == 1 and isinstance(node.parts[0], Literal):
        return node.parts[0].value
    problems = _Problems()
    texts: list[str] = []
    for part in node.parts:
        try:
            texts.append(type_checks.part(part, evaluate(part, scope), scope))
        except BudgetExceeded:
            raise
        except HclError as error:
            problems.add(error)
    problems.raise_any()
    text = "".join(texts)
    scope.spend(node, len(text) // 32)
    return text


def _interpolated(node: TemplateWrap | Interpolation, scope: Scope) -> Value:
    inner = node.inner
    if isinstance(inner, VariableRef) and _is_unresolved(inner, scope):
        return f"${{{node.text}}}"
    return evaluate(inner, scope)


def _choice(node: TemplateIf, scope: Scope) -> Value:
    is_true = type_checks.condition(node.condition, evaluate(node.condition, scope), scope)
    chosen = node.then if is_true else node.otherwise
    return evaluate(chosen, scope)


def _repetition(node: TemplateFor, scope: Scope) -> Value:
    pairs = type_checks.pairs(node.collection, evaluate(node.collection, scope), scope)
    problems = _Problems()
    texts: list[str] = []
    names = dict(scope.values)
    inner = scope.with_names(names)
    for key, value in pairs:
        _name(node, key, value, names)
        text = problems.evaluate(node.each, inner)
        texts.append(text if isinstance(text, str) else "")
    problems.raise_any()
    text = "".join(texts)
    scope.spend(node, len(text) // 32)
    return text


# --- references ---


def _is_unresolved(node: VariableRef, scope: Scope) -> bool:
    """Return whether a reference is unresolved at parse time and remains in the job unchanged."""
    return node.root not in scope.values and scope.functions is not None


def _reference(node: VariableRef, scope: Scope) -> Value:
    if node.root not in scope.values:
        if scope.functions is None:
            raise scope.fault_at(
                node.start,
                node.start + len(node.root),
                "Variables not allowed",
                "Variables may not be used here.",
            )
        return f"${{{node.text}}}"
    value = _walk(scope.values[node.root], node.steps, scope)
    if isinstance(value, str | int):
        return value
    return scope.weigh(node, value)


def _path(node: Path, scope: Scope) -> Value:
    return _walk(evaluate(node.base, scope), node.steps, scope)


def _walk(value: Value, steps: tuple[Step, ...], scope: Scope) -> Value:
    for step in steps:
        if isinstance(step, AttrStep):
            value = attribute_of(value, step, scope)
        else:
            value = element_of(value, step, evaluate(step.key, scope), scope)
    return value


def _element(node: IndexStep, scope: Scope) -> Value:
    return scope.weigh(node, scope.values[ELEMENT])


def _splat(node: Splat, scope: Scope) -> Value:
    base = evaluate(node.base, scope)
    if base is None:
        return ()
    items = elements(base)
    problems = _Problems()
    names = dict(scope.values)
    inner = scope.with_names(names)
    values: list[Value] = []
    for element in (base,) if items is None else items:
        names[ELEMENT] = element
        values.append(problems.evaluate(node.each, inner))
    problems.raise_any()
    return tuple(values)


# --- operators ---


def _prefixed(node: UnaryOp, scope: Scope) -> Value:
    return negated(node, evaluate(node.operand, scope), scope)


def _chain(node: BinaryOp, scope: Scope) -> Value:
    problems = _Problems()
    left = problems.evaluate(node.operands[0], scope)
    for position, operator in enumerate(node.operators):
        right = problems.evaluate(node.operands[position + 1], scope)
        if problems.found:  # the operand was evaluated only for its errors
            continue
        try:
            left = apply(node, position, operator, left, right, scope)
        except BudgetExceeded:
            raise
        except HclError as error:
            problems.add(error)
    problems.raise_any()
    return left


def _conditional(node: Conditional, scope: Scope) -> Value:
    problems = _Problems()
    try:
        is_true = type_checks.condition(node.condition, evaluate(node.condition, scope), scope)
    except BudgetExceeded:
        raise
    except HclError as error:
        problems.add(error)
        is_true = True
    taken, other_branch = (node.then, node.otherwise) if is_true else (node.otherwise, node.then)
    value = problems.evaluate(taken, scope)
    problems.raise_any()
    try:
        passed_over = evaluate(other_branch, scope)
    except BudgetExceeded:
        raise
    except HclError:  # as in Nomad: errors in the other branch are ignored
        return value
    then, otherwise = (value, passed_over) if is_true else (passed_over, value)
    return type_checks.branch(node, value, then, otherwise, scope)


# --- for expressions ---


def _name(node: For | TemplateFor, key: Value, value: Value, names: dict[str, Value]) -> None:
    """Bind the key and the value of an element to the names in `node`."""
    if node.key_name:
        names[node.key_name] = key
    names[node.value_name] = value


def _for(node: For, scope: Scope) -> Value:
    pairs = type_checks.pairs(node.collection, evaluate(node.collection, scope), scope)
    problems = _Problems()
    values: list[Value] = []
    named: dict[str, Value] = {}
    names = dict(scope.values)
    inner = scope.with_names(names)
    for key, element in pairs:
        _name(node, key, element, names)
        try:
            if node.condition is not None and not type_checks.for_condition(
                node.condition, evaluate(node.condition, inner), inner
            ):
                continue
            if node.key is None:
                values.append(evaluate(node.value, inner))
            else:
                pair = evaluate_all((node.key, node.value), inner)
                type_checks.add_for_element(node, node.key, pair, inner, named)
        except BudgetExceeded:
            raise
        except HclError as error:
            problems.add(error)
    problems.raise_any()
    if node.key is None:
        return tuple(values)
    return named


# --- calls ---


def _call(node: CallExpr, scope: Scope) -> Value:
    if scope.functions is None:
        detail = "Functions may not be called here."
        raise scope.fault(node, "Function calls not allowed", detail)
    special = _SPECIAL.get(node.name)
    if special is not None:
        return special(node, scope)
    if node.name not in scope.functions:
        return call(node, (), scope)  # the message names the unknown function
    values = evaluate_all(node.arguments, scope)
    return scope.weigh(node, call(node, tuple(values), scope))


def _try(node: CallExpr, scope: Scope) -> Value:
    """Return the value of the first argument that evaluates without error."""
    reasons = []
    for argument in node.arguments:
        try:
            return evaluate(argument, scope)
        except BudgetExceeded:
            raise
        except HclError as error:
            reasons += [
                f"- {diagnostic.summary} (at {diagnostic.where})\n  {diagnostic.detail}"
                for diagnostic in error.diagnostics
            ]
    if reasons:
        message = "no expression succeeded:\n" + "\n".join(reasons)
        message += "\n\nAt least one expression must produce a successful result"
    else:
        message = "at least one argument is required"
    raise _failed(node, message, scope)


def _can(node: CallExpr, scope: Scope) -> Value:
    """Return whether the argument evaluates without error."""
    if len(node.arguments) != 1:
        raise _failed(node, "exactly one argument is required", scope)
    try:
        evaluate(node.arguments[0], scope)
    except BudgetExceeded:
        raise
    except HclError:
        return False
    return True


def _convert(node: CallExpr, scope: Scope) -> Value:
    """Return the first argument converted to the type that the second argument denotes."""
    if len(node.arguments) != 2:
        raise _failed(node, "a value and a type are required", scope)
    subject, kind = node.arguments
    type_ = read_type(kind, scope.source)
    value = evaluate(subject, scope)
    try:
        return convert(value, type_)
    except ConversionError as error:
        detail = f'Invalid value for "value" parameter: {error}.'
        raise scope.fault_at(*opening(subject), "Invalid function argument", detail) from error


def _failed(node: CallExpr, why: str, scope: Scope) -> HclError:
    detail = f'Call to function "{node.name}" failed: {why}.'
    return scope.fault_at(node.start, node.open_end, "Error in function call", detail)


_SPECIAL = {"try": _try, "can": _can, "convert": _convert}

# Declared for hints about names. Arguments that can fail never reach this function.
SPECIAL = {name: HclFunction(run=lambda *_: None) for name in _SPECIAL}

_EVALUATE: dict[type[Expression], Callable[..., Value]] = {
    Literal: _literal,
    Parenthesized: _parenthesized,
    TupleExpr: _tuple,
    ObjectExpr: _object,
    PropertyName: _property_name,
    TemplateExpr: _template,
    TemplateWrap: _interpolated,
    Interpolation: _interpolated,
    TemplateIf: _choice,
    TemplateFor: _repetition,
    VariableRef: _reference,
    Path: _path,
    IndexStep: _element,
    Splat: _splat,
    UnaryOp: _prefixed,
    BinaryOp: _chain,
    Conditional: _conditional,
    For: _for,
    CallExpr: _call,
}
