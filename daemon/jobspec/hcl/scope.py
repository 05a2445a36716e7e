"""What an expression is evaluated in: names, functions, and how much work is left."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from daemon.jobspec.hcl.source import Diagnostic, Faulty, Source
from daemon.jobspec.hcl.values import Type, Value, measure

MAX_STEPS = 250_000  # of one text: the largest job in the wild needs about 20 000
MAX_TEXT = 4 * 2**20  # characters that one function may produce
MAX_DEPTH = 100  # of collections in collections


class Placed(Protocol):
    """Something of a text."""

    @property
    def start(self) -> int:
        """Return where it starts."""

    @property
    def end(self) -> int:
        """Return where it ends."""


class Budget:
    """How many more steps an evaluation may take; a large value counts as many."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.left = steps


class FunctionFault(Exception):
    """A function cannot do with these arguments; the text says why."""


class ArgumentFault(FunctionFault):
    """One argument is to blame, by its position."""

    def __init__(self, position: int, text: str) -> None:
        super().__init__(text)
        self.position = position


class Parameter(msgspec.Struct, frozen=True):
    """What a function takes at one place."""

    name: str
    type: Type
    may_be_null: bool = False


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """What functions may use of the world: random bytes, and files where there is a user."""

    random: Callable[[int], bytes]
    files: Callable[[str, tuple[Value, ...]], Value] | None = None  # name and arguments


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function that job files may call."""

    parameters: tuple[Parameter, ...] = ()
    rest: Parameter | None = None  # takes all further arguments
    run: Callable[[tuple[Value, ...], Outside], Value]
    cost: Callable[[tuple[Value, ...]], int] | None = None  # in steps, beside its result's size


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Names that mean something; any other name is left for the time when a task runs.

    In a constant scope (`functions` is None) neither names nor functions are allowed.
    """

    source: Source
    values: Mapping[str, Value]
    functions: Mapping[str, Function] | None
    outside: Outside
    budget: Budget

    def with_values(self, values: Mapping[str, Value]) -> "Scope":
        """Return the scope with further names."""
        return self.with_names({**self.values, **values})

    def with_names(self, values: Mapping[str, Value]) -> "Scope":
        """Return the scope with these names only."""
        return Scope(
            source=self.source,
            values=values,
            functions=self.functions,
            outside=self.outside,
            budget=self.budget,
        )

    def fault(self, node: Placed, summary: str, detail: str) -> Faulty:
        """Return the error that a part of the text is wrong."""
        return self.fault_at(node.start, node.end, summary, detail)

    def fault_at(self, start: int, end: int, summary: str, detail: str) -> Faulty:
        """Return the error that something is wrong at a place."""
        return Faulty(
            [Diagnostic(summary=summary, detail=detail, source=self.source, start=start, end=end)]
        )

    def spend(self, node: Placed, steps: int) -> None:
        """Take steps from the budget. Raises `Exhausted` when none are left."""
        self.budget.left -= steps
        if self.budget.left < 0:
            raise Exhausted(
                self.fault(
                    node,
                    "Too much work",
                    f"Evaluation ends here, after {MAX_STEPS} steps; large values count as many.",
                ).diagnostics
            )

    def weigh(self, node: Placed, value: Value) -> Value:
        """Take what a value weighs from the budget; return the value."""
        try:
            self.spend(node, measure(value, self.budget.left, MAX_DEPTH))
        except RecursionError:
            detail = f"Collections may stand within at most {MAX_DEPTH} others."
            raise self.fault(node, "Nested too deep", detail) from None
        return value


class Exhausted(Faulty):
    """Nothing more is evaluated: no error may be swallowed or added after this one."""
