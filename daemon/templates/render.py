"""A template of a task: read once, filled in whenever what it asks for has changed. Pure."""

from collections.abc import Mapping

import msgspec

from daemon.templates.builtin import BUILTIN
from daemon.templates.evaluate import evaluate
from daemon.templates.faults import Budget
from daemon.templates.library import LIBRARY
from daemon.templates.lookups import Answers, Lookups, Question
from daemon.templates.nodes import Program
from daemon.templates.parser import parse

# A step takes a microsecond or two.
FEW_STEPS = 5_000  # do not hold up who does it
MOST_STEPS = 500_000

_NAMES = frozenset({*BUILTIN, *LIBRARY, *Lookups({}, {}, 0).functions})


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """A text, what was asked for it, and what of that has to be there and is not."""

    text: str
    asked: frozenset[Question]
    missing: frozenset[Question]


def read(source: str, left: str = "", right: str = "") -> Program:
    """Return a template that can be filled in. Raises `Fault`."""
    return parse(source, _NAMES, left, right)


def render(
    program: Program,
    answers: Answers,
    environment: Mapping[str, str],
    *,
    now: int,
    strict: bool = False,
    steps: int = MOST_STEPS,
) -> Rendering:
    """Fill in a template with what is known.

    `strict`: a map's entry that there is not is an error. Raises `Fault`; `TooLong` for more steps.
    """
    lookups = Lookups(answers, environment, now)
    functions = {**BUILTIN, **LIBRARY, **lookups.functions}
    text = evaluate(program, functions, Budget(steps), strict=strict)
    return Rendering(text=text, asked=frozenset(lookups.asked), missing=frozenset(lookups.missing))
