"""Function calls. Arguments are counted and converted before the function receives them."""

from daemon.jobspec.hcl.scope import ArgumentFault, FunctionFault, Parameter, Scope
from daemon.jobspec.hcl.source import Diagnostic, HclError, did_you_mean
from daemon.jobspec.hcl.tree import CallExpr, Expression, opening
from daemon.jobspec.hcl.values import ConversionError, Value, convert, elements


def call(node: CallExpr, values: tuple[Value, ...], scope: Scope) -> Value:
    """Return the result of a function for the values of its arguments."""
    functions = scope.functions or {}
    function = functions.get(node.name)
    if function is None:
        detail = f'There is no function named "{node.name}".'
        hint = did_you_mean(node.name, functions)
        raise scope.fault_at(node.start, node.name_end, "Call to unknown function", detail + hint)
    nodes = list(node.arguments)
    if node.expands:
        values, nodes = _expanded(values, nodes, scope)
    _check_count(node, nodes, function.parameters, function.rest, scope)
    converted = _converted(values, nodes, function.parameters, function.rest, scope)
    for value in converted:
        scope.weigh(node, value)
    if function.cost is not None:
        scope.spend(node, function.cost(converted))
    try:
        return function.run(converted, scope.outside)
    except ArgumentFault as error:
        index = min(error.position, len(nodes) - 1)
        raise _bad_argument(
            nodes[index], _parameter(index, function.parameters, function.rest), str(error), scope
        ) from error
    except FunctionFault as error:
        detail = f'Call to function "{node.name}" failed: {error}.'
        raise scope.fault_at(node.start, node.open_end, "Error in function call", detail) from error


def _expanded(
    values: tuple[Value, ...], nodes: list[Expression], scope: Scope
) -> tuple[tuple[Value, ...], list[Expression]]:
    """Expand the last argument: replace it by its elements. Raises `HclError`.

    Return the values of all arguments, and their expressions.
    """
    last = nodes[-1]
    items = elements(values[-1])
    if items is None:
        detail = "The expanding argument (indicated by ...) must be a list, a tuple or a set."
        raise scope.fault(last, "Invalid expanding argument value", detail)
    return (*values[:-1], *items), [*nodes[:-1], *[last] * len(items)]


def _check_count(
    node: CallExpr,
    nodes: list[Expression],
    parameters: tuple[Parameter, ...],
    rest: Parameter | None,
    scope: Scope,
) -> None:
    count = len(parameters)
    if len(nodes) < count:
        at_least = "at least " if rest else ""
        detail = (
            f'Function "{node.name}" expects {at_least}{count} argument(s). '
            f'Missing value for "{parameters[len(nodes)].name}".'
        )
        raise scope.fault_at(node.close, node.close + 1, "Not enough function arguments", detail)
    if len(nodes) > count and rest is None:
        detail = f'Function "{node.name}" expects only {count} argument(s).'
        raise scope.fault_at(*opening(nodes[count]), "Too many function arguments", detail)


def _parameter(index: int, parameters: tuple[Parameter, ...], rest: Parameter | None) -> Parameter:
    if index < len(parameters) or rest is None:
        return parameters[index]
    return rest


def _converted(
    values: tuple[Value, ...],
    nodes: list[Expression],
    parameters: tuple[Parameter, ...],
    rest: Parameter | None,
    scope: Scope,
) -> tuple[Value, ...]:
    converted: list[Value] = []
    problems: list[Diagnostic] = []
    for index, value in enumerate(values):
        parameter = _parameter(index, parameters, rest)
        why = "argument must not be null"
        if value is not None or parameter.may_be_null:
            try:
                converted.append(convert(value, parameter.type))
                continue
            except ConversionError as error:
                why = str(error)
        problems += _bad_argument(nodes[index], parameter, why, scope).diagnostics
    if problems:
        raise HclError(problems)
    return tuple(converted)


def _bad_argument(node: Expression, parameter: Parameter, why: str, scope: Scope) -> HclError:
    detail = f'Invalid value for "{parameter.name}" parameter: {why}.'
    return scope.fault_at(*opening(node), "Invalid function argument", detail)
