"""Conditions of steps (`steward_if`): filter expressions over the run and the needs of a step.

    needs.test.outcome == good and run.meta.target != "none"

A condition is parsed at registration, so a misspelled name is reported there. The scheduler
evaluates it, so its size and its steps are limited. `any` and `all` cannot be nested.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated

import msgspec

from daemon.text.go_format import quote
from daemon.text.hints import Hints
from storage.errors import Malformed
from storage.records.flow import Outcome

MAX_STEPS = 2_000  # steps of an evaluation
_OUTPUT = 3  # position of the name in needs.STEP.outputs.NAME
_SHOWN = 200  # characters of an invalid word in a message


# The values of a step that has ended.
_WORDS = {
    "outcome": tuple(map(str, Outcome)),
    "state": ("succeeded", "failed", "skipped", "canceled"),
}

# values that are compared as numbers
_Output = Annotated[str, msgspec.Meta(extra={"is_numeric": True})]


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The values of `run` in a condition."""

    number: int = 0
    trigger: str = ""
    meta: dict[str, str] = {}


class NeedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The values of `needs.STEP` in a condition.

    `exit_code` is the exit code of the task that failed last, or 0 if no task failed. `total` and
    `failed` count elements. `outputs` are strings; each is a JSON list if the step has elements.
    """

    outcome: str = ""
    state: str = ""
    reason: str = ""
    exit_code: int = 0
    failed: int = 0
    total: int = 0
    outputs: dict[str, _Output] = {}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a condition can refer to."""

    run: RunFacts = RunFacts()
    needs: dict[str, NeedFacts] = {}


class Undecidable(Exception):
    """A condition cannot be evaluated with the given facts; the message is the reason."""


def problems(
    text: str,
    needs: Collection[str],
    hints: Hints | None = None,
    declared: Mapping[str, Collection[str]] = {},
    each_of: Collection[str] = (),
) -> Iterator[str]:
    """Yield the errors in the condition of a step with these needs.

    The condition cannot refer to needs in `each_of`, because the step needs their elements one by
    one. `declared` maps steps to their declared outputs; steps without declared outputs are absent.
    """
    from daemon.jobspec.filters.policy_rule import (
        PolicyFilter,
        equalities,
        has_nested_collections,
        selectors,
    )

    try:
        rule = PolicyFilter(text, Facts)
    except Malformed as error:
        yield f"is not a condition: {error}"
        return
    if has_nested_collections(rule.node):
        yield "has any or all inside another any or all; write the key of the inner any or all instead"
    for path, value in equalities(rule.node):
        allowed = _WORDS.get(path[2]) if path[0] == "needs" and len(path) == _OUTPUT else None
        if allowed and value not in allowed:
            yield (
                f"compares the {path[2]} of a step with {quote(value[:_SHOWN])}, "
                f"but it is one of: {', '.join(allowed)}"
            )
    hints, need_names = hints or Hints(), dict.fromkeys(needs)
    for path in selectors(rule.node):
        if path[0] == "needs" and len(path) > 1 and path[1] in each_of:
            yield f"refers to {quote(path[1])}, which the group needs element by element"
        elif path[0] == "needs" and len(path) > 1 and path[1] not in need_names:
            hint = hints.of(path[1], need_names)
            yield f"refers to {quote(path[1])}, which the group does not need{hint}"
        elif path[0] == "needs" and path[2:3] == ("outputs",) and len(path) > _OUTPUT:
            names = declared.get(path[1])
            if names and path[_OUTPUT] not in names:
                yield (
                    f"refers to output {quote(path[_OUTPUT])} of {path[1]}, "
                    f"but {path[1]} declares only: {', '.join(names)}"
                )


def is_true(
    text: str,
    run: RunFacts,
    needs: Mapping[str, NeedFacts],
    faults: Mapping[str, str] = {},
) -> bool:
    """Return whether a condition is true. Raises `Undecidable`.

    `faults` maps needs with unreadable outputs to the reason.
    """
    from daemon.jobspec.filters.policy_rule import PolicyFilter, selectors

    try:
        rule = PolicyFilter(text, Facts)
        for path in selectors(rule.node) if faults else ():
            for name, fault in faults.items():
                if path[:_OUTPUT] == ("needs", name, "outputs")[: len(path)]:
                    raise Undecidable(fault)
        return rule.matches(msgspec.to_builtins(Facts(run=run, needs=dict(needs))), MAX_STEPS)
    except Malformed as error:
        raise Undecidable(str(error)) from error
