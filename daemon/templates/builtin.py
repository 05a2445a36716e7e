"""The functions that every Go template has (pkg.go.dev/text/template, "Functions"). Pure."""

import html
from collections.abc import Mapping
from urllib.parse import quote_plus

from daemon.templates.evaluate import Known
from daemon.templates.faults import Budget, Fault
from daemon.templates.printf import printf
from daemon.templates.values import entry, equal, is_true, less, shown, text_of, type_name, whole_of


def _not(_: Budget, value: object) -> bool:
    return not is_true(value)


def _len(_: Budget, value: object) -> int:
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))  # Go counts bytes
    if isinstance(value, Mapping | list | range):
        return len(value)
    raise Fault(f"len of type {type_name(value)}")


def _index(budget: Budget, value: object, *keys: object) -> object:
    for key in keys:
        budget.spend()
        value = _one(value, key)
    return value


def _one(value: object, key: object) -> object:
    if isinstance(value, Mapping):
        return entry(value, text_of(key), strict=False)
    if isinstance(value, list | range | str):
        place = whole_of(key)
        if not 0 <= place < len(value):
            raise Fault(f"index out of range: {place}")
        return ord(value[place]) if isinstance(value, str) else value[place]
    raise Fault(f"can't index item of type {type_name(value)}")


def _slice(budget: Budget, value: object, *places: object) -> object:
    if not isinstance(value, list | str):
        raise Fault(f"can't slice item of type {type_name(value)}")
    start, end, *_ = [*map(whole_of, places), *(0, len(value))[len(places) :]]
    if not 0 <= start <= end <= len(value):
        raise Fault(f"index out of range: {start}:{end}")
    budget.make(end - start)
    return value[start:end]


def _print(budget: Budget, *values: object) -> str:
    pieces: list[str] = []
    for number, value in enumerate(values):
        # Go: a space between two values of which none is a text
        if number and not (isinstance(value, str) or isinstance(values[number - 1], str)):
            pieces.append(" ")
        pieces.append("<nil>" if value is None else shown(value, budget))
    return _joined(budget, pieces, "")


def _println(budget: Budget, *values: object) -> str:
    return _joined(budget, [shown(one, budget) for one in values], " ") + "\n"


def _joined(budget: Budget, pieces: list[str], apart: str) -> str:
    budget.make(sum(map(len, pieces)) + len(apart) * len(pieces))
    return apart.join(pieces)


def _printf(budget: Budget, form: object, *values: object) -> str:
    return printf(budget, text_of(form), values)


def _html(budget: Budget, *values: object) -> str:
    text = _print(budget, *values)
    budget.make(6 * len(text))
    return html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


def _urlquery(budget: Budget, *values: object) -> str:
    text = _print(budget, *values)
    budget.make(12 * len(text))
    return quote_plus(text, safe="~")


def _eq(budget: Budget, first: object, *others: object) -> bool:
    budget.spend(len(others))
    return any(equal(first, one) for one in others)


def _ne(_: Budget, first: object, second: object) -> bool:
    return not equal(first, second)


def _lt(_: Budget, first: object, second: object) -> bool:
    return less(first, second)


def _le(_: Budget, first: object, second: object) -> bool:
    return not less(second, first)


def _gt(_: Budget, first: object, second: object) -> bool:
    return less(second, first)


def _ge(_: Budget, first: object, second: object) -> bool:
    return not less(first, second)


def _short(_: Budget, *values: object) -> object:
    """Stand for `and` and `or`: the evaluator does them itself, as not all is looked at."""
    return values[-1]


_MOST_PLACES = 3
BUILTIN: dict[str, Known] = {
    "and": Known(_short, 1),
    "or": Known(_short, 1),
    "not": Known(_not, 1, 1),
    "len": Known(_len, 1, 1),
    "index": Known(_index, 1),
    "slice": Known(_slice, 1, _MOST_PLACES),
    "print": Known(_print),
    "println": Known(_println),
    "printf": Known(_printf, 1),
    "html": Known(_html),
    "urlquery": Known(_urlquery),
    "eq": Known(_eq, 2),
    "ne": Known(_ne, 2, 2),
    "lt": Known(_lt, 2, 2),
    "le": Known(_le, 2, 2),
    "gt": Known(_gt, 2, 2),
    "ge": Known(_ge, 2, 2),
}
