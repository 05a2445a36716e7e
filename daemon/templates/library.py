"""Template functions in addition to Go's: texts, numbers, lists and encodings. No I/O.

Functions have the names and the argument order that existing job files use. The main argument is
the last one, so that a pipeline can supply it.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from itertools import zip_longest

from daemon.matching import regexp
from daemon.templates.documents import (
    parse_json,
    parse_yaml,
    to_json,
    to_json_pretty,
    to_toml,
    to_unescaped_json,
    to_unescaped_json_pretty,
    to_yaml,
)
from daemon.templates.errors import StepBudget, TemplateError
from daemon.templates.evaluate import TemplateFunction
from daemon.templates.values import bounded, equal, is_true, list_of, number_of, text_of, whole_of
from daemon.text.go_format import quote
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


def _hmac(budget: StepBudget, message: object, key: object) -> str:
    text, secret = text_of(message), text_of(key)
    budget.make(4 * (len(text) + len(secret)))
    return hmac.new(
        secret.encode(errors="replace"), text.encode(errors="replace"), "sha256"
    ).hexdigest()


# --- maps ---


def _split_to_map(budget: StepBudget, apart: object, between: object, value: object) -> object:
    """Return a map of the text `k:v,k:v`, given its separators. Parts without a value are left out."""
    inner, pairs = text_of(between), _split(budget, apart, value)
    if not inner:
        raise TemplateError("the separator between keys and values is empty")
    budget.make(len(text_of(value)))
    parts = (pair.partition(inner) for pair in pairs)
    return {key: text for key, found, text in parts if found}


def _merge(*, overrides: bool) -> Callable[[StepBudget, object, object], object]:
    """Return a function that merges its second map into its first. Maps in them are merged too.

    Without `overrides`, a value of the second map replaces only an empty value.
    """

    def call(budget: StepBudget, destination: object, source: object) -> object:
        if not isinstance(source, Mapping) or not isinstance(destination, Mapping):
            raise TemplateError("both arguments must be maps")
        budget.spend(2 + len(source) + len(destination))
        budget.enter()
        merged = dict(destination)
        for key, value in source.items():
            before = merged.get(key)
            if isinstance(value, Mapping) and isinstance(before, Mapping):
                merged[key] = call(budget, before, value)
            elif overrides or not is_true(before):
                merged[key] = value
        budget.exit_block()
        return merged

    return call


# --- sprig ---


def _default(_: StepBudget, default: object, value: object = None) -> object:
    return value if is_true(value) else default


def _coalesce(_: StepBudget, *values: object) -> object:
    return next((value for value in values if is_true(value)), None)


def _ternary(_: StepBudget, yes: object, no: object, condition: object) -> object:
    return yes if is_true(condition) else no


def _list(budget: StepBudget, *values: object) -> list[object]:
    budget.spend(len(values))
    return list(values)


def _dict(budget: StepBudget, *values: object) -> dict[str, object]:
    budget.spend(len(values))
    keys = [text_of(key) for key in values[::2]]
    return dict(zip_longest(keys, values[1::2], fillvalue=""))


def _repeat(budget: StepBudget, times: object, value: object) -> str:
    number, text = max(0, whole_of(times)), text_of(value)
    budget.make(number * len(text))
    return text * number


def _truncate(_: StepBudget, length: object, value: object) -> str:
    number, text = whole_of(length), text_of(value)
    return text[:number] if number >= 0 else text[number:]


def _next_line_indent(budget: StepBudget, spaces: object, value: object) -> str:
    return f"\n{_indent(budget, spaces, value)}"


def _has_prefix(_: StepBudget, prefix: object, value: object) -> bool:
    return text_of(value).startswith(text_of(prefix))


def _has_suffix(_: StepBudget, suffix: object, value: object) -> bool:
    return text_of(value).endswith(text_of(suffix))


def _has_text(budget: StepBudget, part: object, value: object) -> bool:
    return _in(budget, text_of(value), part)


def _split_list(budget: StepBudget, apart: object, value: object) -> list[str]:
    mark, text = text_of(apart), text_of(value)
    budget.spend(text.count(mark) if mark else len(text))
    return text.split(mark) if mark else list(text)


_ARGUMENTS = 3
_ANY = 100  # arguments
SPRIG: dict[str, TemplateFunction] = {
    "sprig_upper": _on_text(str.upper),
    "sprig_lower": _on_text(str.lower),
    "sprig_title": _on_text(_title),
    "sprig_trim": _on_text(str.strip),
    "sprig_quote": _on_text(quote),
    "sprig_squote": _on_text(lambda text: f"'{text}'"),
    "sprig_b64enc": _on_text(_encoded),
    "sprig_b64dec": _on_text(_decoded),
    "sprig_sha256sum": _on_text(_sha256),
    "sprig_default": TemplateFunction(_default, 1, 2),
    "sprig_coalesce": TemplateFunction(_coalesce, 0, _ANY),
    "sprig_ternary": TemplateFunction(_ternary, _ARGUMENTS, _ARGUMENTS),
    "sprig_list": TemplateFunction(_list, 0, _ANY),
    "sprig_dict": TemplateFunction(_dict, 0, _ANY),
    "sprig_repeat": TemplateFunction(_repeat, 2, 2),
    "sprig_trunc": TemplateFunction(_truncate, 2, 2),
    "sprig_indent": TemplateFunction(_indent, 2, 2),
    "sprig_nindent": TemplateFunction(_next_line_indent, 2, 2),
    "sprig_replace": TemplateFunction(_replace_all, _ARGUMENTS, _ARGUMENTS),
    "sprig_join": TemplateFunction(_join, 2, 2),
    "sprig_splitList": TemplateFunction(_split_list, 2, 2),
    "sprig_contains": TemplateFunction(_has_text, 2, 2),
    "sprig_hasPrefix": TemplateFunction(_has_prefix, 2, 2),
    "sprig_hasSuffix": TemplateFunction(_has_suffix, 2, 2),
}
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
    "toUnescapedJSONPretty": TemplateFunction(to_unescaped_json_pretty, 1, 1),
    "parseYAML": TemplateFunction(parse_yaml, 1, 1),
    "toTOML": TemplateFunction(to_toml, 1, 1),
    "hmacSHA256Hex": TemplateFunction(_hmac, 2, 2),
    "splitToMap": TemplateFunction(_split_to_map, _ARGUMENTS, _ARGUMENTS),
    "mergeMap": TemplateFunction(_merge(overrides=False), 2, 2),
    "mergeMapWithOverride": TemplateFunction(_merge(overrides=True), 2, 2),
    **SPRIG,
    "toYAML": TemplateFunction(to_yaml, 1, 1),
}
