"""Rendering of templates. No I/O."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from daemon.templates.errors import LONGEST, StepBudget, TemplateError, TemplateOutputTooLong
from daemon.templates.nodes import (
    Body,
    BreakNode,
    CommandNode,
    ConstantNode,
    DotNode,
    FieldChainNode,
    FunctionNode,
    IfNode,
    Node,
    Operand,
    OutputNode,
    ParsedTemplate,
    PipeNode,
    RangeNode,
    TemplateCallNode,
    TextNode,
    VariableNode,
    WithNode,
)
from daemon.templates.values import field, format_value, is_true, type_name

# The function receives the budget before its arguments.
Callee = Callable[..., object]
_ANY = 1000
_NAMES_FOR_A_STEP = 16  # names that a lookup skips per step


class TemplateFunction(msgspec.Struct, frozen=True):
    """A function that templates can call, with its minimum and maximum number of arguments."""

    call: Callee
    least: int = 0
    most: int = _ANY


class _Break(Exception):  # a signal, not an error
    pass


class _Continue(Exception):  # a signal, not an error
    pass


def evaluate(
    program: ParsedTemplate,
    functions: Mapping[str, TemplateFunction],
    budget: StepBudget,
    *,
    strict: bool = False,
) -> str:
    """Return the output of a template.

    With `strict`, a missing map entry is an error. Raises `TemplateError`, or
    `TemplateOutputTooLong` above the step limit.
    """
    evaluator = _Evaluator(program, functions, budget, strict=strict)
    try:
        evaluator.body(program.body, None)
    except RecursionError:
        raise TemplateError("a value is nested too deeply") from None
    return "".join(evaluator.pieces)


class _Evaluator:
    def __init__(
        self,
        program: ParsedTemplate,
        functions: Mapping[str, TemplateFunction],
        budget: StepBudget,
        *,
        strict: bool,
    ) -> None:
        self._templates, self._functions = program.templates, functions
        self._budget, self._strict = budget, strict
        self._variables: list[tuple[str, object]] = [("$", None)]
        self._length = 0
        self.pieces: list[str] = []

    # --- actions ---

    def body(self, body: Body, dot: object) -> None:
        """Write the output of a list of nodes; `dot` is the current value."""
        self._budget.enter()
        for node in body:
            self._budget.spend()
            self._node(node, dot)
        self._budget.exit_block()

    def _node(self, node: Node, dot: object) -> None:
        match node:
            case TextNode():
                self._write(node.text)
            case OutputNode():
                value = self._pipe(node.pipe, dot)
                if not node.pipe.variables:
                    self._write(format_value(value, self._budget))
            case IfNode() | WithNode() | RangeNode():
                variable_count = len(self._variables)
                self._block(node, dot)
                del self._variables[variable_count:]
            case TemplateCallNode():
                self._call(node, dot)
            case BreakNode():
                raise _Break if node.ends else _Continue

    def _write(self, text: str) -> None:
        self._budget.make(len(text))
        self._length += len(text)
        if self._length > LONGEST:
            raise TemplateError(f"the result has more than {LONGEST} characters")
        self.pieces.append(text)

    def _block(self, node: IfNode | WithNode | RangeNode, dot: object) -> None:
        value = self._pipe(node.pipe, dot)
        if isinstance(node, RangeNode):
            self._range(node, value, dot)
        elif not is_true(value):
            self.body(node.otherwise, dot)
        else:
            self.body(node.body, value if isinstance(node, WithNode) else dot)

    def _range(self, node: RangeNode, value: object, dot: object) -> None:
        turns = 0
        names = node.pipe.variables
        outer_count = len(self._variables) - (len(names) if node.pipe.declares else 0)
        for key, element in self._iterations(node.pipe.line, value):
            turns += 1
            self._budget.spend()
            self._keep_turn(node.pipe, key, element)
            variable_count, depth = len(self._variables), self._budget.depth
            try:
                self.body(node.body, element)
            except _Continue:
                self._budget.depth = depth
            except _Break:
                self._budget.depth = depth
                break
            finally:
                del self._variables[variable_count:]
        if not turns:
            del self._variables[outer_count:]
            self.body(node.otherwise, dot)

    def _iterations(self, line: int, value: object) -> Iterator[tuple[object, object]]:
        match value:
            case Mapping():
                self._budget.spend(len(value))  # charge for sorting, even if the loop ends early
                return ((key, value[key]) for key in sorted(value))
            case list() | range():
                return iter(enumerate(value))
            case int() if not isinstance(value, bool):
                return iter(enumerate(range(value)))
            case _ if not is_true(value):
                return iter(())
        raise _error_at(line, f"range can't iterate over {type_name(value)}")

    def _keep_turn(self, pipe: PipeNode, key: object, element: object) -> None:
        names = pipe.variables
        for name, value in zip(
            names, (key, element) if len(names) > 1 else (element,), strict=False
        ):
            self._assign(name, value)

    def _call(self, node: TemplateCallNode, dot: object) -> None:
        body = self._templates.get(node.name)
        if body is None:
            raise _error_at(node.line, f'template "{node.name}" not defined')
        value = self._pipe(node.pipe, dot) if node.pipe else None
        outer, self._variables = self._variables, [("$", value)]
        self.body(body, value)
        self._variables = outer

    # --- pipelines ---

    def _pipe(self, pipe: PipeNode, dot: object) -> object:
        self._budget.enter()
        value: object = None
        try:
            for number, command in enumerate(pipe.commands):
                before = (value,) if number else ()
                value = self._command(command, dot, before)
        except TemplateOutputTooLong:
            raise
        except TemplateError as error:
            raise _error_at(pipe.line, str(error)) from error
        for name in pipe.variables:  # a range sets its variables in each iteration
            self._keep(pipe, name, value)
        self._budget.exit_block()
        return value

    def _keep(self, pipe: PipeNode, name: str, value: object) -> None:
        if pipe.declares:
            self._variables.append((name, value))
        else:
            self._assign(name, value)

    def _assign(self, name: str, value: object) -> None:
        for index in range(len(self._variables) - 1, -1, -1):
            if self._variables[index][0] == name:
                self._variables[index] = (name, value)
                return
        raise TemplateError(f'undefined variable "{name}"')

    def _variable(self, name: str) -> object:
        for distance, (variable_name, value) in enumerate(reversed(self._variables)):
            if variable_name == name:
                self._budget.spend(distance // _NAMES_FOR_A_STEP)
                return value
        raise TemplateError(f'undefined variable "{name}"')

    def _command(self, command: CommandNode, dot: object, before: tuple[object, ...]) -> object:
        self._budget.spend()
        first, *rest = command.operands
        if isinstance(first, FunctionNode):
            return self._apply(first.name, rest, dot, before)
        if rest or before:
            raise TemplateError("can't give argument to something that is not a function")
        return self._operand(first, dot)

    def _operand(self, operand: Operand, dot: object) -> object:
        self._budget.spend()
        match operand:
            case DotNode():
                return dot
            case ConstantNode():
                return operand.value
            case VariableNode():
                return self._variable(operand.name)
            case FunctionNode():
                return self._apply(operand.name, [], dot, ())
            case PipeNode():
                return self._pipe(operand, dot)
            case FieldChainNode():
                value = self._operand(operand.of, dot)
                for name in operand.names:
                    value = field(value, name, self._budget, strict=self._strict)
                return value

    def _apply(
        self, name: str, operands: list[Operand], dot: object, before: tuple[object, ...]
    ) -> object:
        evaluated = (self._operand(operand, dot) for operand in operands)
        if name in {"and", "or"}:
            return _first(name == "or", evaluated, before)
        arguments = [*evaluated, *before]
        for argument in arguments:
            self._budget.charge(argument)
        function = self._functions[name]
        if not function.least <= len(arguments) <= function.most:
            raise TemplateError(f"wrong number of args for {name}: got {len(arguments)}")
        try:
            return function.call(self._budget, *arguments)
        except TemplateOutputTooLong:
            raise
        except TemplateError as error:
            raise TemplateError(f"error calling {name}: {error}") from error


def _first(stop_at: bool, evaluated: Iterable[object], before: tuple[object, ...]) -> object:
    """Return the first value whose truth value is `stop_at`, or else the last value.

    Operands after the returned value are not evaluated.
    """
    value: object = None
    count = 0
    for value in evaluated:
        count += 1
        if is_true(value) == stop_at:
            return value
    for value in before:
        count += 1
        if is_true(value) == stop_at:
            return value
    if not count:
        raise TemplateError("wrong number of args: want at least 1 got 0")
    return value


def _error_at(line: int, problem: str) -> TemplateError:
    """Return an error whose text begins with the line, unless `problem` already names a line."""
    return TemplateError(problem if problem.startswith("line ") else f"line {line}: {problem}")
