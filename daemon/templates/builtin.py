"""The built-in functions of Go templates (pkg.go.dev/text/template, "Functions"). No I/O."""

import html
from collections.abc import Mapping
from urllib.parse import quote_plus

from daemon.templates.errors import StepBudget, TemplateError
from daemon.templates.evaluate import TemplateFunction
from daemon.templates.printf import printf
from daemon.templates.values import (
    entry,
    equal,
    format_value,
    is_true,
    less,
    text_of,
    type_name,
    whole_of,
)


def _not(_: StepBudget, value: object) -> bool:
    return not is_true(value)


def _len(_: StepBudget, value: object) -> int:
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))  # Go counts bytes
    if isinstance(value, Mapping | list | range):
        return len(value)
    raise TemplateError(f"len of type {type_name(value)}")


def _index(budget: StepBudget, value: object, *keys: object) -> object:
    for key in keys:
        budget.spend()
        value = _one(budget, value, key)
    return value


def _one(budget: StepBudget, value: object, key: object) -> object:
    if isinstance(value, Mapping):
        return entry(value, text_of(key), budget, strict=False)
    if isinstance(value, list | range | str):
        index = whole_of(key)
        if not 0 <= index < len(value):
            raise TemplateError(f"index out of range: {index}")
        return ord(value[index]) if isinstance(value, str) else value[index]
    raise TemplateError(f"can't index item of type {type_name(value)}")


def _slice(budget: StepBudget, value: object, *indexes: object) -> object:
    if not isinstance(value, list | str):
        raise TemplateError(f"can't slice item of type {type_name(value)}")
    start, end, *_ = [*map(whole_of, indexes), *(0, len(value))[len(indexes) :]]
    if not 0 <= start <= end <= len(value):
        raise TemplateError(f"index out of range: {start}:{end}")
    budget.make(end - start)
    return value[start:end]


def _print(budget: StepBudget, *values: object) -> str:
    pieces: list[str] = []
    for number, value in enumerate(values):
        # Go: a space between two values if neither is a string
        if number and not (isinstance(value, str) or isinstance(values[number - 1], str)):
            pieces.append(" ")
        pieces.append("<nil>" if value is None else format_value(value, budget))
    return _joined(budget, pieces, "")


def _println(budget: StepBudget, *values: object) -> str:
    return _joined(budget, [format_value(value, budget) for value in values], " ") + "\n"


def _joined(budget: StepBudget, pieces: list[str], apart: str) -> str:
    budget.make(sum(map(len, pieces)) + len(apart) * len(pieces))
    return apart.join(pieces)


def _printf(budget: StepBudget, form: object, *values: object) -> str:
    return printf(budget, text_of(form), values)


def _html(budget: StepBudget, *values: object) -> str:
    text = _print(budget, *values)
    budget.make(6 * len(text))
    return html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


def _urlquery(budget: StepBudget, *values: object) -> str:
    text = _print(budget, *values)
    budget.make(12 * len(text))
    return quote_plus(text, safe="~")


def _eq(budget: StepBudget, first: object, *candidates: object) -> bool:
    budget.spend(len(candidates))
    return any(equal(first, candidate) for candidate in candidates)


def _ne(_: StepBudget, first: object, second: object) -> bool:
    return not equal(first, second)


def _lt(_: StepBudget, first: object, second: object) -> bool:
    return less(first, second)


def _le(_: StepBudget, first: object, second: object) -> bool:
    return not less(second, first)


def _gt(_: StepBudget, first: object, second: object) -> bool:
    return less(second, first)


def _ge(_: StepBudget, first: object, second: object) -> bool:
    return not less(first, second)


def _short(_: StepBudget, *values: object) -> object:
    """Represent `and` and `or` in the table of functions.

    The evaluator handles both itself, because it must evaluate their arguments lazily.
    """
    return values[-1]


_MOST_PLACES = 3
BUILTIN: dict[str, TemplateFunction] = {
    "and": TemplateFunction(_short, 1),
    "or": TemplateFunction(_short, 1),
    "not": TemplateFunction(_not, 1, 1),
    "len": TemplateFunction(_len, 1, 1),
    "index": TemplateFunction(_index, 1),
    "slice": TemplateFunction(_slice, 1, _MOST_PLACES),
    "print": TemplateFunction(_print),
    "println": TemplateFunction(_println),
    "printf": TemplateFunction(_printf, 1),
    "html": TemplateFunction(_html),
    "urlquery": TemplateFunction(_urlquery),
    "eq": TemplateFunction(_eq, 2),
    "ne": TemplateFunction(_ne, 2, 2),
    "lt": TemplateFunction(_lt, 2, 2),
    "le": TemplateFunction(_le, 2, 2),
    "gt": TemplateFunction(_gt, 2, 2),
    "ge": TemplateFunction(_ge, 2, 2),
}
