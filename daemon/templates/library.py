"""Template functions in addition to Go's: texts, numbers, lists and encodings. No I/O.

Functions have the names and the argument order that existing job files use. The main argument is
the last one, so that a pipeline can supply it.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Mapping

from daemon.matching import regexp
from daemon.templates.documents import (
    parse_json,
    to_json,
    to_json_pretty,
    to_unescaped_json,
    to_yaml,
)
from daemon.templates.errors import StepBudget, TemplateError
from daemon.templates.evaluate import TemplateFunction
from daemon.templates.values import bounded, equal, list_of, number_of, text_of, whole_of
from storage.errors import Invalid

_LONGEST_NUMBER = 30  # digits that are parsed
_FLOAT = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_MICROSECONDS_OF_A_STEP = 1
_TRUTHS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}

# --- texts ---


def _join(budget: StepBudget, apart: object, values: object) -> str:
    mark, elements = text_of(apart), list_of(values)
    budget.spend(len(elements))
    texts = [text_of(element) for element in elements]
    budget.make(sum(map(len, texts)) + len(mark) * len(texts))
    return mark.join(texts)


def _split(budget: StepBudget, apart: object, value: object) -> list[str]:
    mark, text = text_of(apart), text_of(value).strip()
    if not text:
        return []
    budget.spend(text.count(mark) if mark else len(text))
    return text.split(mark) if mark else list(text)


def _replace_all(budget: StepBudget, old: object, new: object, value: object) -> str:
    old_text, put, text = text_of(old), text_of(new), text_of(value)
    budget.make(len(text) + text.count(old_text) * len(put))
    return text.replace(old_text, put)


def _matches(budget: StepBudget, pattern: object, value: object) -> bool:
    expression, text = text_of(pattern), text_of(value)
    budget.make(len(text))
    try:
        budget.spend(regexp.match_cost(expression, text) // _MICROSECONDS_OF_A_STEP)
        return regexp.search(expression, text, most=None)
    except Invalid as error:
        raise TemplateError(str(error)) from error


def _replace_matches(budget: StepBudget, pattern: object, new: object, value: object) -> str:
    text = text_of(value)
    try:
        budget.spend(regexp.search_cost(text_of(pattern), len(text)) // _MICROSECONDS_OF_A_STEP)
        return regexp.replace(text_of(pattern), text_of(new), text, budget.make)
    except Invalid as error:
        raise TemplateError(str(error)) from error


def _title(text: str) -> str:
    """Return a text with each word capitalized; letters after the first stay unchanged."""
    before = [" ", *text]
    return "".join(
        char if last.isalnum() or last in "_'" else char.title()
        for last, char in zip(before, text, strict=False)
    )


def _trim(budget: StepBudget, characters: object, value: object) -> str:
    text, cut = text_of(value), text_of(characters)
    budget.make(len(text) + len(cut))
    return text.strip(cut) if cut else text


def _on_text(change: Callable[[str], str]) -> TemplateFunction:
    def call(budget: StepBudget, value: object) -> str:
        text = text_of(value)
        budget.make(4 * len(text))
        return change(text)

    return TemplateFunction(call, 1, 1)


def _trim_prefix(_: StepBudget, prefix: object, value: object) -> str:
    return text_of(value).removeprefix(text_of(prefix))


def _trim_suffix(_: StepBudget, suffix: object, value: object) -> str:
    return text_of(value).removesuffix(text_of(suffix))


def _indent(budget: StepBudget, spaces: object, value: object) -> str:
    width, text = whole_of(spaces), text_of(value)
    if width < 0:
        raise TemplateError("indent value must be a positive integer")
    lines = text.split("\n")
    budget.make(len(text) + width * len(lines))
    return "\n".join(f"{' ' * width}{line}" if line else line for line in lines)


def _contains(budget: StepBudget, element: object, values: object) -> bool:
    return _in(budget, values, element)


def _in(budget: StepBudget, values: object, element: object) -> bool:
    if isinstance(values, str):
        budget.make(len(values))
        return text_of(element) in values
    elements = list(values.values()) if isinstance(values, Mapping) else list_of(values)
    budget.spend(len(elements))
    return any(_is(value, element) for value in elements)


def _compares(*, needs_all: bool, negates: bool) -> TemplateFunction:
    """Return a function that checks whether some or all elements of a list are in another list."""

    def call(budget: StepBudget, elements: object, values: object) -> bool:
        found = (_in(budget, values, element) for element in list_of(elements))
        return (all(found) if needs_all else any(found)) is not negates

    return TemplateFunction(call, 2, 2)


def _is(value: object, other: object) -> bool:
    try:
        return equal(value, other)
    except TemplateError:
        return False


# --- numbers ---


def _parse_int(_: StepBudget, value: object) -> int:
    text = text_of(value)
    if not text:
        return 0
    digits = text[1:] if text[0] in "+-" else text
    if not digits.isdecimal() or not digits.isascii() or len(digits) > _LONGEST_NUMBER:
        raise TemplateError(f"{text[:_LONGEST_NUMBER]!r} is not a whole number")
    return int(bounded(int(text)))


def _parse_uint(budget: StepBudget, value: object) -> int:
    text = text_of(value)
    if text[:1] in ("+", "-"):
        raise TemplateError(f"{text[:_LONGEST_NUMBER]!r} is not a whole number")
    return _parse_int(budget, text)


def _parse_float(_: StepBudget, value: object) -> float:
    text = text_of(value)
    if not text:
        return 0.0
    if len(text) > _LONGEST_NUMBER or not _FLOAT.fullmatch(text):
        raise TemplateError(f"{text[:_LONGEST_NUMBER]!r} is not a number")
    return float(text)


def _parse_bool(_: StepBudget, value: object) -> bool:
    text = text_of(value)
    if text not in ("", *_TRUTHS):
        raise TemplateError(f"{text[:_LONGEST_NUMBER]!r} is neither true nor false")
    return _TRUTHS.get(text, False)


def _calculation(work: Callable[[float, float], float]) -> TemplateFunction:
    """Return a template function that passes its two arguments to `work` in reverse order.

    So `{{ 5 | subtract 2 }}` is 3.
    """

    def call(_: StepBudget, second: object, first: object) -> float:
        try:
            return bounded(work(number_of(first), number_of(second)))
        except ZeroDivisionError:
            raise TemplateError("division by zero") from None
        except OverflowError:
            raise TemplateError("the result is too large") from None

    return TemplateFunction(call, 2, 2)


def _divide(first: float, second: float) -> float:
    if isinstance(first, int) and isinstance(second, int):
        whole = abs(first) // abs(second)  # Go: toward zero
        return whole if (first < 0) == (second < 0) else -whole
    return first / second


def _modulo(first: float, second: float) -> float:
    if not (isinstance(first, int) and isinstance(second, int)):
        raise TemplateError("both arguments of modulo must be whole numbers")
    rest = abs(first) % abs(second)
    return rest if first >= 0 else -rest


def _loop(_: StepBudget, first: object, end: object = None) -> range:
    start, stop = (0, whole_of(first)) if end is None else (whole_of(first), whole_of(end))
    bounded(stop - start)
    return range(start, stop)


# --- encodings ---


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode(errors="replace")).decode()


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode(errors="replace")
    except (binascii.Error, ValueError) as error:
        raise TemplateError(f"not base64: {error}") from error


def _url_encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode(errors="replace")).decode()


def _url_decoded(text: str) -> str:
    if "+" in text or "/" in text:
        raise TemplateError("not URL-safe base64: it contains + or /")
    return _decoded(text.replace("-", "+").replace("_", "/"))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(errors="replace"), usedforsecurity=False).hexdigest()


_ARGUMENTS = 3
LIBRARY: dict[str, TemplateFunction] = {
    "join": TemplateFunction(_join, 2, 2),
    "split": TemplateFunction(_split, 2, 2),
    "replaceAll": TemplateFunction(_replace_all, _ARGUMENTS, _ARGUMENTS),
    "regexMatch": TemplateFunction(_matches, 2, 2),
    "regexReplaceAll": TemplateFunction(_replace_matches, _ARGUMENTS, _ARGUMENTS),
    "toUpper": _on_text(str.upper),
    "toLower": _on_text(str.lower),
    "toTitle": _on_text(_title),
    "trimSpace": _on_text(str.strip),
    "trim": TemplateFunction(_trim, 2, 2),
    "trimPrefix": TemplateFunction(_trim_prefix, 2, 2),
    "trimSuffix": TemplateFunction(_trim_suffix, 2, 2),
    "indent": TemplateFunction(_indent, 2, 2),
    "contains": TemplateFunction(_contains, 2, 2),
    "in": TemplateFunction(_in, 2, 2),
    "parseInt": TemplateFunction(_parse_int, 1, 1),
    "containsAll": _compares(needs_all=True, negates=False),
    "containsAny": _compares(needs_all=False, negates=False),
    "containsNone": _compares(needs_all=False, negates=True),
    "containsNotAll": _compares(needs_all=True, negates=True),
    "parseUint": TemplateFunction(_parse_uint, 1, 1),
    "parseFloat": TemplateFunction(_parse_float, 1, 1),
    "parseBool": TemplateFunction(_parse_bool, 1, 1),
    "add": _calculation(lambda first, second: first + second),
    "subtract": _calculation(lambda first, second: first - second),
    "multiply": _calculation(lambda first, second: first * second),
    "divide": _calculation(_divide),
    "modulo": _calculation(_modulo),
    "maximum": _calculation(max),
    "minimum": _calculation(min),
    "loop": TemplateFunction(_loop, 1, 2),
    "base64Encode": _on_text(_encoded),
    "base64Decode": _on_text(_decoded),
    "base64URLEncode": _on_text(_url_encoded),
    "base64URLDecode": _on_text(_url_decoded),
    "sha256Hex": _on_text(_sha256),
    "md5sum": _on_text(_md5),
    "parseJSON": TemplateFunction(parse_json, 1, 1),
    "toJSON": TemplateFunction(to_json, 1, 1),
    "toUnescapedJSON": TemplateFunction(to_unescaped_json, 1, 1),
    "toJSONPretty": TemplateFunction(to_json_pretty, 1, 1),
    "toYAML": TemplateFunction(to_yaml, 1, 1),
}
