"""A task's template: parsed once, and rendered again when its lookups change. No I/O."""

from collections.abc import Mapping

import msgspec

from daemon.templates.builtin import BUILTIN
from daemon.templates.errors import StepBudget, TemplateError, UnknownFunction
from daemon.templates.evaluate import evaluate
from daemon.templates.library import LIBRARY
from daemon.templates.lookups import Answers, LookupKey, LookupResults
from daemon.templates.nodes import ParsedTemplate
from daemon.templates.parser import parse
from daemon.text.hints import closest

# A step takes one or two microseconds.
FEW_STEPS = 5_000  # few enough not to block the caller
MOST_STEPS = 500_000

_NAMES = frozenset({*BUILTIN, *LIBRARY, *LookupResults({}, {}, 0).functions})


class RenderResult(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered text, all its lookups, and the lookups of objects that do not exist."""

    text: str
    asked: frozenset[LookupKey]
    missing: frozenset[LookupKey]


def read(source: str, left: str = "", right: str = "") -> ParsedTemplate:
    """Parse a template. Raises `TemplateError`."""
    return parse(source, _NAMES, left, right)


def syntax_error(source: str, left: str = "", right: str = "") -> tuple[str, str]:
    """Return why a template cannot be parsed, and the nearest name of an unknown function.

    Both texts are empty for a valid template.
    """
    try:
        read(source, left, right)
    except UnknownFunction as error:
        names = {name.lower(): name for name in sorted(_NAMES)}
        return str(error), names.get(closest(error.name.lower(), names), "")
    except TemplateError as error:
        return str(error), ""
    return "", ""


def render(
    program: ParsedTemplate,
    answers: Answers,
    environment: Mapping[str, str],
    *,
    now: int,
    strict: bool = False,
    steps: int = MOST_STEPS,
) -> RenderResult:
    """Render a template with the results of lookups in `answers`.

    With `strict`, a missing map entry is an error. Raises `TemplateError`, or
    `TemplateOutputTooLong` above the step limit.
    """
    lookups = LookupResults(answers, environment, now)
    functions = {**BUILTIN, **LIBRARY, **lookups.functions}
    text = evaluate(program, functions, StepBudget(steps), strict=strict)
    return RenderResult(
        text=text, asked=frozenset(lookups.asked), missing=frozenset(lookups.missing)
    )
