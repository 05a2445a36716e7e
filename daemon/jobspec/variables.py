"""Input variables of a job file: declarations, supplied values and results.

The last value wins: default, environment, files in order, then flags in order.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from daemon.jobspec.decode.bodies import contents, properties
from daemon.jobspec.hcl.evaluate import evaluate
from daemon.jobspec.hcl.json_syntax import is_json, read_json_body
from daemon.jobspec.hcl.parser import read_body, read_expression
from daemon.jobspec.hcl.scope import BudgetExceeded, Scope
from daemon.jobspec.hcl.source import Diagnostic, HclError, SourceText
from daemon.jobspec.hcl.tree import (
    Argument,
    AttrStep,
    Block,
    Body,
    Expression,
    ObjectExpr,
    key_text,
)
from daemon.jobspec.hcl.typenames import read_type
from daemon.jobspec.hcl.values import (
    ANY,
    BOOL,
    CollectionType,
    ConversionError,
    Type,
    Value,
    convert,
    is_number,
    to_text,
    type_of,
)
from daemon.jobspec.hcl.walk import references

_NAME = re.compile(r"[^\W\d][\w-]*")
_ARGUMENTS = frozenset({"type", "default", "description", "sensitive"})
_RULE_ARGUMENTS = frozenset({"condition", "error_message"})
_AS_TEXT = ("string", "number", "any")  # types whose values are bare text


class VariableValue(msgspec.Struct, frozen=True, kw_only=True):
    """A supplied value of a variable: an expression in a file, or bare text."""

    origin: str  # name of the source in messages
    source: SourceText
    value: Expression | None = None  # None: the whole text is the value


class ValidationRule(msgspec.Struct, frozen=True):
    """A validation condition of a variable."""

    block: Block
    condition: Expression
    message: Expression | None


class InputVariable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable that a job file declares."""

    name: str
    block: Block
    type: Type
    default: VariableValue | None = None
    rules: tuple[ValidationRule, ...] = ()
    is_sensitive: bool = False


# --- declarations ---


def declared(
    blocks: Iterable[Block], scope: Scope, problems: list[Diagnostic]
) -> list[InputVariable]:
    """Return the declared variables; `scope` allows constants only."""
    variables_by_name: dict[str, InputVariable] = {}
    for block in blocks:
        try:
            variables = list(_declarations(block, scope))
        except BudgetExceeded:
            raise
        except HclError as error:
            problems += error.diagnostics
            continue
        for variable in variables:
            if variable.name in variables_by_name:
                detail = f'Variable "{variable.name}" is declared already.'
                problems += scope.fault(variable.block, "Duplicate variable", detail).diagnostics
            variables_by_name.setdefault(variable.name, variable)
    return list(variables_by_name.values())


def _declarations(block: Block, scope: Scope) -> Iterator[InputVariable]:
    if block.kind == "variable":
        yield _variable(block, scope)
        return
    arguments = _arguments_only(block, scope)
    for argument in arguments:  # `variables { a = 1 }`
        default = VariableValue(origin="default", source=scope.source, value=argument.value)
        kind = type_of(evaluate(argument.value, scope))
        yield InputVariable(name=argument.name, block=block, type=kind, default=default)


def _arguments_only(block: Block, scope: Scope) -> list[Argument]:
    """Return the arguments of a free-form block. Raises `HclError` for nested blocks."""
    if not isinstance(block.body, Body):
        return list(_properties(block.body, scope.source).values())
    if block.body.blocks:
        inner = block.body.blocks[0]
        detail = "Blocks are not allowed here."
        raise scope.fault(inner, f'Unexpected "{inner.kind}" block', detail)
    return list(block.body.arguments.values())


def _variable(block: Block, scope: Scope) -> InputVariable:
    body_contents = contents(block.body, scope.source, _ARGUMENTS, {"validation": 0})
    problems = list(body_contents.problems)
    label = block.labels[0]
    if not _NAME.fullmatch(label.text):
        problems += scope.fault(
            label,
            "Invalid variable name",
            "A name must start with a letter or underscore and may contain only letters, digits, "
            "underscores, and dashes.",
        ).diagnostics
    kind, default = ANY, body_contents.arguments.get("default")
    try:
        kind = _type(body_contents.arguments, scope)
    except HclError as error:
        raise HclError([*problems, *error.diagnostics]) from error
    rules = [_rule(block, label.text, scope, problems) for block in body_contents.blocks]
    is_sensitive = _is_sensitive(body_contents.arguments.get("sensitive"), scope, problems)
    if problems:
        raise HclError(problems)
    return InputVariable(
        name=label.text,
        block=block,
        type=kind,
        default=VariableValue(origin="default", source=scope.source, value=default.value)
        if default
        else None,
        rules=tuple([rule for rule in rules if rule is not None]),
        is_sensitive=is_sensitive,
    )


def _is_sensitive(argument: Argument | None, scope: Scope, problems: list[Diagnostic]) -> bool:
    if argument is None:
        return False
    value = evaluate(argument.value, scope)
    if not isinstance(value, bool):
        problems += scope.fault(
            argument.value, "Invalid sensitive argument", "Write true or false."
        ).diagnostics
    return value is True


def texts_of(value: Value) -> Iterator[str]:
    """Yield the texts and numbers in a value, as texts."""
    inner = value.items if isinstance(value, CollectionType) else value
    if isinstance(inner, dict):
        for element in inner.values():
            yield from texts_of(element)
    elif isinstance(inner, tuple):
        for element in inner:
            yield from texts_of(element)
    elif isinstance(inner, str) or is_number(inner):
        yield to_text(inner)


def _type(arguments: Mapping[str, Argument], scope: Scope) -> Type:
    """Return the type of a variable: the declared type, or the type of its default."""
    written, default = arguments.get("type"), arguments.get("default")
    if written is None:
        return type_of(evaluate(default.value, scope)) if default else ANY
    kind = read_type(_unquoted(written.value, scope), scope.source)
    if default is not None:
        try:
            convert(evaluate(default.value, scope), kind)
        except ConversionError as error:
            raise scope.fault(
                default.value,
                "Invalid default value for variable",
                "This default value is not compatible with the variable's type constraint: "
                f"{error}.",
            ) from error
    return kind


def _unquoted(node: Expression, scope: Scope) -> Expression:
    """Return a type expression. A JSON job file has it as a string, which is parsed here."""
    text = key_text(node)
    if text is None or not is_json(scope.source):
        return node
    return read_expression(SourceText(scope.source.name, " " * node.start + text))


def _rule(
    block: Block, name: str, scope: Scope, problems: list[Diagnostic]
) -> ValidationRule | None:
    body_contents = contents(block.body, scope.source, _RULE_ARGUMENTS, {})
    problems += body_contents.problems
    condition, message = (
        body_contents.arguments.get(argument_name)
        for argument_name in ("condition", "error_message")
    )
    if condition is None:
        detail = 'The argument "condition" is required, but no definition was found.'
        problems += scope.fault_at(
            block.body.start, block.body.start, "Missing required argument", detail
        ).diagnostics
        return None
    if not _refers_to(condition.value, name):
        problems += scope.fault(
            condition.value,
            "Invalid variable validation condition",
            f'The condition for variable "{name}" must refer to var.{name} in order to test '
            "incoming values.",
        ).diagnostics
    return ValidationRule(block, condition.value, message.value if message else None)


def _refers_to(node: Expression, name: str) -> bool:
    return any(
        reference.root == "var"
        and isinstance(reference.steps[0], AttrStep)
        and reference.steps[0].name == name
        for reference in references(node)
        if reference.steps
    )


# --- values ---


def given_in_file(source: SourceText, origin: str = "varfile") -> dict[str, VariableValue]:
    """Return the values in the text of a variables file. Raises `HclError`.

    `origin` is the kind of source that errors about the values mention.
    """
    if is_json(source):
        arguments = _properties(read_json_body(source), source)
    else:
        body = read_body(source)
        for block in body.blocks:
            raise HclError([_block_in_file(block, source)])
        arguments = body.arguments
    return {
        name: VariableValue(origin=origin, source=source, value=argument.value)
        for name, argument in arguments.items()
    }


def _properties(body: ObjectExpr, source: SourceText) -> dict[str, Argument]:
    """Return the arguments of a JSON object. Raises `HclError` for a repeated argument."""
    problems: list[Diagnostic] = []
    arguments = properties(body, source, problems)
    if problems:
        raise HclError(problems)
    return arguments


def _block_in_file(block: Block, source: SourceText) -> Diagnostic:
    if block.kind == "variable" and block.labels:
        name = block.labels[0].text
        summary = "Variable declaration in a variables file"
        detail = (
            "Variables are declared in the job file. A variables file only gives values: "
            f'write {name} = "value".'
        )
    else:
        summary = f'Unexpected "{block.kind}" block'
        detail = "Blocks are not allowed here."
    return Diagnostic(
        summary=summary, detail=detail, source=source, start=block.start, end=block.head_end
    )


def values_of(
    variables: Iterable[InputVariable],
    values_given: Mapping[str, VariableValue],
    constants: Scope,
    full: Scope,
    problems: list[Diagnostic],
) -> dict[str, Value]:
    """Return the values of variables.

    Values are evaluated in the scope `constants`, and conditions in the scope `full`, which has all
    functions.
    """
    values: dict[str, Value] = {}
    for variable in variables:
        chosen = values_given.get(variable.name, variable.default)
        if chosen is None:
            problems += constants.fault_at(
                variable.block.start,
                variable.block.head_end,
                f'Unset variable "{variable.name}"',
                "A used variable must be set or have a default value.",
            ).diagnostics
            continue
        try:
            value = _value(variable, chosen, constants)
            values[variable.name] = value
            _check(variable, chosen, value, full)
        except BudgetExceeded:
            raise
        except HclError as error:
            problems += error.diagnostics
    return values


def _value(variable: InputVariable, variable_value: VariableValue, scope: Scope) -> Value:
    inner = msgspec.structs.replace(scope, source=variable_value.source)
    node = variable_value.value
    if node is None and variable.type.kind not in _AS_TEXT:
        node = read_expression(variable_value.source)
    value = variable_value.source.text if node is None else evaluate(node, inner)
    try:
        return convert(value, variable.type)
    except ConversionError as error:
        raise _refusal(
            variable_value,
            "Invalid value for variable",
            f"The value for {variable.name} is not compatible with the variable's type "
            f"constraint: {error}.",
        ) from error


def _refusal(variable_value: VariableValue, summary: str, detail: str) -> HclError:
    node = variable_value.value
    start, end = (node.start, node.end) if node else (0, len(variable_value.source.text))
    return HclError(
        [
            Diagnostic(
                summary=summary, detail=detail, source=variable_value.source, start=start, end=end
            )
        ]
    )


def _check(
    variable: InputVariable, variable_value: VariableValue, value: Value, scope: Scope
) -> None:
    """Raise `HclError` if a value violates a condition of its variable."""
    inner = scope.with_values({"var": {variable.name: value}})
    for rule in variable.rules:
        holds = evaluate(rule.condition, inner)
        try:
            if holds is not None and convert(holds, BOOL) is True:
                continue
        except ConversionError as error:
            detail = f"Validation condition expression must return either true or false: {error}."
            raise scope.fault(
                rule.condition, "Invalid variable validation result", detail
            ) from error
        where = Diagnostic(
            summary="", source=scope.source, start=rule.block.start, end=rule.block.head_end
        ).where
        raise _refusal(
            variable_value,
            f"Invalid value for {variable_value.origin} variable",
            f"{_message(rule, inner)}\n\nThis was checked by the validation rule at {where}.",
        )


def _message(rule: ValidationRule, scope: Scope) -> str:
    if rule.message is None:
        return "The value does not meet the condition."
    try:
        return to_text(evaluate(rule.message, scope))
    except ConversionError as error:
        detail = f"The error message is not a string: {error}."
        raise scope.fault(rule.message, "Invalid error message", detail) from error
