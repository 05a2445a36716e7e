"""Parser of job files: it returns a job document, or raises all errors together.

The document has the form of Nomad's parse endpoint: all fields are present, and null if the file
does not set them.
"""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import msgspec

from daemon.jobspec.decode.blocks import Decoder
from daemon.jobspec.decode.bodies import BodyContents, contents, properties
from daemon.jobspec.decode.tables.job import JOB
from daemon.jobspec.hcl.evaluate import evaluate
from daemon.jobspec.hcl.functions.table import FUNCTIONS
from daemon.jobspec.hcl.json_syntax import is_json, read_json_body
from daemon.jobspec.hcl.parser import read_body
from daemon.jobspec.hcl.scope import BudgetExceeded, EvaluationBudget, FunctionEnvironment, Scope
from daemon.jobspec.hcl.source import Diagnostic, HclError, SourceText, did_you_mean
from daemon.jobspec.hcl.strings import replace_surrogates
from daemon.jobspec.hcl.tree import Argument, AttrStep, Block, Body, ObjectExpr
from daemon.jobspec.hcl.values import Value
from daemon.jobspec.hcl.walk import references
from daemon.jobspec.variables import VariableValue, declared, given_in_file, texts_of, values_of
from storage.records.codec import Document

MAX_LENGTH = 4 * 2**20  # characters per text: twice the largest known job
FILE_NAME = "input.hcl"  # Nomad's name for a text without a name
_TOP = {"job": 1, "variable": 1, "variables": 0, "locals": 0}


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """A job file with its variable values.

    `variable_files` has the name and the text of each variables file. The last value of a variable
    wins. Flags override files, and files override the environment.
    """

    text: str
    name: str = FILE_NAME
    variable_files: tuple[tuple[str, str], ...] = ()
    flags: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    is_v1: bool = False
    is_strict: bool = False  # values for undeclared variables are an error


def parse_job(file: JobFile, outside: FunctionEnvironment) -> Document:
    """Parse a job file to its job. Raises `HclError`."""
    scope = _scope(file, outside)
    body = _body(file, scope.source)
    values_given = _given(file)
    file_contents = contents(body, scope.source, frozenset(), _TOP)
    if file_contents.problems:
        raise HclError(file_contents.problems)
    extended_scope = _with_values(scope, file_contents, values_given, is_strict=file.is_strict)
    return _job([block for block in file_contents.blocks if block.kind == "job"], extended_scope)


def sensitive_values(file: JobFile, outside: FunctionEnvironment) -> list[str]:
    """Return the texts in the values of the variables with `sensitive = true`. Raises `HclError`."""
    scope = _scope(file, outside)
    file_contents = contents(_body(file, scope.source), scope.source, frozenset(), _TOP)
    constants = msgspec.structs.replace(scope, functions=None)
    problems: list[Diagnostic] = []
    variables = [
        input_variable
        for input_variable in declared(_declarations(file_contents), constants, problems)
        if input_variable.is_sensitive
    ]
    values = values_of(variables, _given(file), constants, scope, problems)
    if problems:
        raise HclError(problems)
    return list(dict.fromkeys(text for value in values.values() for text in texts_of(value)))


def environment_used(file: JobFile) -> dict[str, str]:
    """Return the environment variables that set variables of a valid file."""
    scope = _scope(file, FunctionEnvironment(random=bytes))
    file_contents = contents(_body(file, scope.source), scope.source, frozenset(), _TOP)
    constants = msgspec.structs.replace(scope, functions=None)
    names = {variable.name for variable in declared(_declarations(file_contents), constants, [])}
    without_environment = _given(msgspec.structs.replace(file, environment={}))
    return {
        name: text
        for name, text in file.environment.items()
        if name in names and name not in without_environment
    }


def _scope(file: JobFile, outside: FunctionEnvironment) -> Scope:
    return Scope(
        source=_source(file.name, file.text),
        values={},
        functions=FUNCTIONS,
        outside=outside,
        budget=EvaluationBudget(),
    )


def _source(name: str, text: str) -> SourceText:
    """Return a text with its name. Raises `HclError` if it is too long."""
    if len(text) <= MAX_LENGTH:
        return SourceText(name, replace_surrogates(text))
    beginning = SourceText(name, replace_surrogates(text[:1000]))
    detail = f"The text has {len(text)} characters; the maximum is {MAX_LENGTH}."
    raise HclError(
        [Diagnostic(summary="Text too long", detail=detail, source=beginning, start=0, end=1)]
    )


def _body(file: JobFile, source: SourceText) -> Body | ObjectExpr:
    return read_json_body(source) if is_json(source) else read_body(source, is_v1=file.is_v1)


def _declarations(body_contents: BodyContents) -> list[Block]:
    return [block for block in body_contents.blocks if block.kind in ("variable", "variables")]


def _given(file: JobFile) -> dict[str, VariableValue]:
    """Return the supplied values of variables. Raises `HclError`."""
    values_given: dict[str, VariableValue] = {}
    for name, text in file.environment.items():
        values_given[name] = VariableValue(
            origin="environment", source=_source(f"environment {name}", text)
        )
    for file_name, text in file.variable_files:
        try:
            values_given |= given_in_file(_source(file_name, text))
        except HclError as error:
            before = "unable to parse var content: "
            raise HclError(error.diagnostics, before) from error
    for name, text in file.flags.items():
        values_given[name] = VariableValue(origin="flag", source=_source(f"-var {name}", text))
    return values_given


def _with_values(
    scope: Scope,
    body_contents: BodyContents,
    values_given: Mapping[str, VariableValue],
    *,
    is_strict: bool,
) -> Scope:
    """Return the scope with variables and locals. Raises `HclError`.

    With `is_strict`, a value for an undeclared variable is an error.
    """
    problems: list[Diagnostic] = []
    constants = msgspec.structs.replace(scope, functions=None)
    variables = declared(_declarations(body_contents), constants, problems)
    var = values_of(variables, values_given, constants, scope, problems)
    if is_strict and not problems:
        problems += _undeclared(values_given, {variable.name for variable in variables})
    extended_scope = scope.with_values({"var": var, "local": {}})
    blocks = [block for block in body_contents.blocks if block.kind == "locals"]
    extended_scope = _with_locals(extended_scope, blocks, problems)
    if problems:
        raise HclError(problems)
    return extended_scope


def _undeclared(
    values_given: Mapping[str, VariableValue], declared_names: set[str]
) -> list[Diagnostic]:
    return [
        Diagnostic(
            summary="Undefined variable",
            detail=f'A "{name}" variable was set but was not found in known variables.'
            + did_you_mean(name, declared_names),
            source=variable.source,
            start=variable.value.start if variable.value else 0,
            end=variable.value.end if variable.value else len(variable.source.text),
        )
        for name, variable in values_given.items()
        if name not in declared_names and variable.origin != "environment"
    ]


# --- locals ---


def _with_locals(scope: Scope, blocks: Iterable[Block], problems: list[Diagnostic]) -> Scope:
    """Return the scope with all locals, evaluated in dependency order."""
    arguments = {  # a later block wins
        name: argument
        for block in blocks
        for name, argument in _arguments(block.body, scope, problems)
    }
    needs = {name: _referenced_locals(argument, arguments) for name, argument in arguments.items()}
    values: dict[str, Value] = {}
    inner = scope.with_values({"local": values})
    failed: set[str] = set()
    for name in _in_order(needs, arguments, scope, problems):
        if needs[name] & failed:  # the cause has been reported
            failed.add(name)
            continue
        try:
            values[name] = evaluate(arguments[name].value, inner)
        except BudgetExceeded:
            raise
        except HclError as error:
            failed.add(name)
            problems += error.diagnostics
    return inner


def _in_order(
    needs: Mapping[str, set[str]],
    arguments: Mapping[str, Argument],
    scope: Scope,
    problems: list[Diagnostic],
) -> list[str]:
    """Return the names of locals in dependency order."""
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        circle: list[str] = error.args[1]
        argument = arguments[min(circle)]
        problems += scope.fault_at(
            argument.start,
            argument.name_end,
            "Circular reference",
            f"Locals cannot form a cycle: {' refers to '.join(reversed(circle[:10]))}.",
        ).diagnostics
        return []


def _arguments(
    body: Body | ObjectExpr, scope: Scope, problems: list[Diagnostic]
) -> list[tuple[str, Argument]]:
    if isinstance(body, ObjectExpr):
        return list(properties(body, scope.source, problems).items())
    for block in body.blocks:
        detail = f"Blocks are not allowed here; write {block.kind} = {{ ... }}."
        problems += scope.fault(block, f'Unexpected "{block.kind}" block', detail).diagnostics
    return list(body.arguments.items())


def _referenced_locals(argument: Argument, names: Mapping[str, object]) -> set[str]:
    """Return the locals that a local's value references."""
    local_names = set()
    for reference in references(argument.value):
        if reference.root != "local":
            continue
        step = reference.steps[0] if reference.steps else None
        if isinstance(step, AttrStep):
            local_names.add(step.name)
        else:
            local_names |= names.keys() - {argument.name}
    return local_names & names.keys()


# --- job ---


def _job(blocks: list[Block], scope: Scope) -> Document:
    if not blocks:
        raise HclError([Diagnostic(summary="Missing job block", detail="A job block is required")])
    if len(blocks) > 1:
        where = Diagnostic(
            summary="", source=scope.source, start=blocks[0].start, end=blocks[0].head_end
        ).where
        raise scope.fault_at(
            blocks[1].start,
            blocks[1].head_end,
            "Duplicate job block",
            f'Only one block of type "job" is allowed. Previous definition was at {where}.',
        )
    decoder = Decoder()
    document = decoder.document(JOB, blocks[0], scope, {"label": blocks[0].labels[0].text})
    if decoder.problems:
        raise HclError(decoder.problems)
    return document
