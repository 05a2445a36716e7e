"""Context of an evaluation: names, functions and the remaining budget."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from daemon.jobspec.hcl.source import Diagnostic, HclError, SourceText
from daemon.jobspec.hcl.values import Type, Value, measure

MAX_STEPS = 250_000  # steps per text; the largest known job needs about 20,000
MAX_TEXT = 4 * 2**20  # characters in a function's result
MAX_DEPTH = 100  # nesting of collections


class SourceRange(Protocol):
    """A range of a text."""

    @property
    def start(self) -> int:
        """Return the start offset."""

    @property
    def end(self) -> int:
        """Return the end offset."""


class EvaluationBudget:
    """The remaining steps of an evaluation. A large value counts as many steps."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.left = steps


class FunctionFault(Exception):
    """A function rejects its arguments; the text gives the reason."""


class ArgumentFault(FunctionFault):
    """A function rejects one of its arguments. `position` is the index of the argument."""

    def __init__(self, position: int, text: str) -> None:
        super().__init__(text)
        self.position = position


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a function."""

    name: str
    type: Type
    may_be_null: bool = False


class FunctionEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Data from outside the job file for functions: random bytes and, in the CLI, files."""

    random: Callable[[int], bytes]
    files: Callable[[str, tuple[Value, ...]], Value] | None = None  # name and arguments


class HclFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function that job files can call."""

    parameters: tuple[Parameter, ...] = ()
    rest: Parameter | None = None  # accepts all other arguments
    run: Callable[[tuple[Value, ...], FunctionEnvironment], Value]
    # Steps in addition to the size of its result.
    cost: Callable[[tuple[Value, ...]], int] | None = None


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Names in scope. Other names stay unresolved until the task starts.

    A constant scope (without `functions`) allows neither names nor functions.
    """

    source: SourceText
    values: Mapping[str, Value]
    functions: Mapping[str, HclFunction] | None
    outside: FunctionEnvironment
    budget: EvaluationBudget

    def with_values(self, values: Mapping[str, Value]) -> "Scope":
        """Return the scope with additional names."""
        return self.with_names({**self.values, **values})

    def with_names(self, values: Mapping[str, Value]) -> "Scope":
        """Return the scope restricted to these names."""
        return Scope(
            source=self.source,
            values=values,
            functions=self.functions,
            outside=self.outside,
            budget=self.budget,
        )

    def fault(self, node: SourceRange, summary: str, detail: str) -> HclError:
        """Return an error about a part of the text."""
        return self.fault_at(node.start, node.end, summary, detail)

    def fault_at(self, start: int, end: int, summary: str, detail: str) -> HclError:
        """Return an error at a position."""
        return HclError(
            [Diagnostic(summary=summary, detail=detail, source=self.source, start=start, end=end)]
        )

    def spend(self, node: SourceRange, steps: int) -> None:
        """Deduct steps from the budget. Raises `BudgetExceeded` if none remain."""
        self.budget.left -= steps
        if self.budget.left < 0:
            raise BudgetExceeded(
                self.fault(
                    node,
                    "Too much work",
                    f"Evaluation ends here, after {MAX_STEPS} steps; a large value counts as many steps.",
                ).diagnostics
            )

    def weigh(self, node: SourceRange, value: Value) -> Value:
        """Deduct the size of a value from the budget; return the value."""
        try:
            self.spend(node, measure(value, self.budget.left, MAX_DEPTH))
        except RecursionError:
            detail = f"Collections can have at most {MAX_DEPTH} levels."
            raise self.fault(node, "Nested too deep", detail) from None
        return value


class BudgetExceeded(HclError):
    """The budget is exhausted. The evaluation stops, and callers pass on this error unchanged."""
