"""Filling in a template: actions become text. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from daemon.templates.faults import LONGEST, Budget, Fault, TooLong
from daemon.templates.nodes import (
    Body,
    Call,
    Chain,
    Command,
    Constant,
    Dot,
    Function,
    If,
    Leave,
    Node,
    Operand,
    Pipe,
    Plain,
    Program,
    Range,
    Show,
    Variable,
    With,
)
from daemon.templates.values import field, is_true, shown, type_name

# It gets the budget before its arguments.
Callee = Callable[..., object]
_ANY = 1000
_NAMES_FOR_A_STEP = 16  # that are passed over when a variable is looked for


class Known(msgspec.Struct, frozen=True):
    """A function that templates may call, with the fewest and the most arguments it takes."""

    call: Callee
    least: int = 0
    most: int = _ANY


class _Break(Exception):  # no error
    pass


class _Continue(Exception):  # no error
    pass


def evaluate(
    program: Program, functions: Mapping[str, Known], budget: Budget, *, strict: bool = False
) -> str:
    """Return what a template writes. Raises `Fault`, also when it takes more than its budget.

    `strict`: a map's entry that there is not is an error.
    """
    evaluator = _Evaluator(program, functions, budget, strict=strict)
    try:
        evaluator.body(program.body, None)
    except RecursionError:
        raise Fault("a value is nested too deep") from None
    return "".join(evaluator.pieces)


class _Evaluator:
    def __init__(
        self,
        program: Program,
        functions: Mapping[str, Known],
        budget: Budget,
        *,
        strict: bool,
    ) -> None:
        self._templates, self._functions = program.templates, functions
        self._budget, self._strict = budget, strict
        self._variables: list[tuple[str, object]] = [("$", None)]
        self._length = 0
        self.pieces: list[str] = []

    # ---- actions --------------------------------------------------------------------------------

    def body(self, body: Body, dot: object) -> None:
        """Write what these nodes say about a value."""
        self._budget.enter()
        for node in body:
            self._budget.spend()
            self._node(node, dot)
        self._budget.leave()

    def _node(self, node: Node, dot: object) -> None:
        match node:
            case Plain():
                self._write(node.text)
            case Show():
                value = self._pipe(node.pipe, dot)
                if not node.pipe.variables:
                    self._write(shown(value, self._budget))
            case If() | With() | Range():
                known = len(self._variables)
                self._block(node, dot)
                del self._variables[known:]
            case Call():
                self._call(node, dot)
            case Leave():
                raise _Break if node.ends else _Continue

    def _write(self, text: str) -> None:
        self._budget.make(len(text))
        self._length += len(text)
        if self._length > LONGEST:
            raise Fault(f"the result has more than {LONGEST} characters")
        self.pieces.append(text)

    def _block(self, node: If | With | Range, dot: object) -> None:
        value = self._pipe(node.pipe, dot)
        if isinstance(node, Range):
            self._range(node, value, dot)
        elif not is_true(value):
            self.body(node.otherwise, dot)
        else:
            self.body(node.body, value if isinstance(node, With) else dot)

    def _range(self, node: Range, value: object, dot: object) -> None:
        turns = 0
        names = node.pipe.variables
        known = len(self._variables) - (len(names) if node.pipe.declares else 0)
        for key, one in self._turns(node.pipe.line, value):
            turns += 1
            self._budget.spend()
            self._keep_turn(node.pipe, key, one)
            kept, depth = len(self._variables), self._budget.depth
            try:
                self.body(node.body, one)
            except _Continue:
                self._budget.depth = depth
            except _Break:
                self._budget.depth = depth
                break
            finally:
                del self._variables[kept:]
        if not turns:
            del self._variables[known:]
            self.body(node.otherwise, dot)

    def _turns(self, line: int, value: object) -> Iterator[tuple[object, object]]:
        match value:
            case Mapping():
                return ((key, value[key]) for key in sorted(value))
            case list() | range():
                return iter(enumerate(value))
            case int() if not isinstance(value, bool):
                return iter(enumerate(range(value)))
            case _ if not is_true(value):
                return iter(())
        raise _at(line, f"range can't iterate over {type_name(value)}")

    def _keep_turn(self, pipe: Pipe, key: object, one: object) -> None:
        names = pipe.variables
        for name, value in zip(names, (key, one) if len(names) > 1 else (one,), strict=False):
            self._assign(name, value)

    def _call(self, node: Call, dot: object) -> None:
        body = self._templates.get(node.name)
        if body is None:
            raise _at(node.line, f'template "{node.name}" not defined')
        value = self._pipe(node.pipe, dot) if node.pipe else None
        outer, self._variables = self._variables, [("$", value)]
        self.body(body, value)
        self._variables = outer

    # ---- pipelines ------------------------------------------------------------------------------

    def _pipe(self, pipe: Pipe, dot: object) -> object:
        self._budget.enter()
        value: object = None
        try:
            for number, command in enumerate(pipe.commands):
                before = (value,) if number else ()
                value = self._command(command, dot, before)
        except TooLong:
            raise
        except Fault as error:
            raise _at(pipe.line, str(error)) from error
        for name in pipe.variables:  # those of a range get their values at each turn
            self._keep(pipe, name, value)
        self._budget.leave()
        return value

    def _keep(self, pipe: Pipe, name: str, value: object) -> None:
        if pipe.declares:
            self._variables.append((name, value))
        else:
            self._assign(name, value)

    def _assign(self, name: str, value: object) -> None:
        for place in range(len(self._variables) - 1, -1, -1):
            if self._variables[place][0] == name:
                self._variables[place] = (name, value)
                return
        raise Fault(f'undefined variable "{name}"')

    def _variable(self, name: str) -> object:
        for distance, (known, value) in enumerate(reversed(self._variables)):
            if known == name:
                self._budget.spend(distance // _NAMES_FOR_A_STEP)
                return value
        raise Fault(f'undefined variable "{name}"')

    def _command(self, command: Command, dot: object, before: tuple[object, ...]) -> object:
        self._budget.spend()
        first, *rest = command.operands
        if isinstance(first, Function):
            return self._apply(first.name, rest, dot, before)
        if rest or before:
            raise Fault("can't give argument to something that is no function")
        return self._operand(first, dot)

    def _operand(self, operand: Operand, dot: object) -> object:
        self._budget.spend()
        match operand:
            case Dot():
                return dot
            case Constant():
                return operand.value
            case Variable():
                return self._variable(operand.name)
            case Function():
                return self._apply(operand.name, [], dot, ())
            case Pipe():
                return self._pipe(operand, dot)
            case Chain():
                value = self._operand(operand.of, dot)
                for name in operand.names:
                    value = field(value, name, strict=self._strict)
                return value

    def _apply(
        self, name: str, operands: list[Operand], dot: object, before: tuple[object, ...]
    ) -> object:
        given = (self._operand(one, dot) for one in operands)
        if name in {"and", "or"}:
            return _first(name == "or", given, before)
        arguments = [*given, *before]
        for one in arguments:
            self._budget.look_at(one)
        known = self._functions[name]
        if not known.least <= len(arguments) <= known.most:
            raise Fault(f"wrong number of args for {name}: got {len(arguments)}")
        try:
            return known.call(self._budget, *arguments)
        except TooLong:
            raise
        except Fault as error:
            raise Fault(f"error calling {name}: {error}") from error


def _first(wanted: bool, given: Iterable[object], before: tuple[object, ...]) -> object:
    """Return the first value that is, or is not, empty; what follows it is not even looked at."""
    value: object = None
    count = 0
    for value in given:
        count += 1
        if is_true(value) == wanted:
            return value
    for value in before:
        count += 1
        if is_true(value) == wanted:
            return value
    if not count:
        raise Fault("wrong number of args: want at least 1 got 0")
    return value


def _at(line: int, problem: str) -> Fault:
    """Return a fault with its line, unless it has one."""
    return Fault(problem if problem.startswith("line ") else f"line {line}: {problem}")
