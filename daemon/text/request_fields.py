"""Request fields of the Vault API, and their conversion to values.

Vault's clients rely on its lenient decoding. A number may be text, a list may be comma-separated
text, and a duration may be a number of seconds. Errors have Vault's texts, because scripts match
them.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from daemon.text.go_format import quote
from storage.errors import Malformed
from storage.records import json_steps
from storage.records.codec import excess_of_values, says_nothing
from storage.records.numbers import parse_integer

T = TypeVar("T")
Values = Mapping[str, object]

MAX_DEPTH = 500  # levels of nested JSON; the API needs no more than three
MAX_FIELDS = 1000  # fields of a form
MAX_FORM = 256 * 1024  # bytes of a form, because it is decoded on the event loop
MAX_VALUES = 20_000  # values of a JSON body; the largest request, a lookup, has a few hundred
_MOST_NAMED = 20  # unknown fields named in one warning
_LONGEST_NAME = 100  # characters of one such name

_FORM = "application/x-www-form-urlencoded"
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False", ""})
_INTEGER = re.compile(r"[+-]?[0-9]+")
_PART = re.compile(r"([0-9]*\.?[0-9]*)([^0-9.]*)")
_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_LONGEST = 2**63 // 10**9 + 1  # seconds: the first value whose nanoseconds exceed 64 bits
_INT64 = range(-(2**63), 2**63)


def _paths(values: Values, inner: Collection[str]) -> Iterator[tuple[str, object]]:
    """Yield the fields with their values. Each object in `inner` is replaced by its own fields."""
    for name, value in values.items():
        if name in inner and isinstance(value, dict):
            yield from ((f"{name}.{key}", member) for key, member in value.items())
        elif name not in inner:
            yield name, value


class _Unconvertible(Exception):
    """The reason why a value cannot be converted."""


class RequestFields:
    """The fields of a request, by name."""

    def __init__(self, values: Values) -> None:
        self._values = values

    @property
    def values(self) -> Values:
        """Return all fields as sent."""
        return self._values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def unknown(self, known_names: Collection[str]) -> list[str]:
        """Return the names of fields that are not in `known_names` and have a value, in order.

        `a.b` is the field b of the object a.
        """
        inner = {name.partition(".")[0] for name in known_names if "." in name}
        return sorted(
            name[:_LONGEST_NAME]
            for name, value in _paths(self._values, inner)
            if name not in known_names and not says_nothing(value)
        )[:_MOST_NAMED]

    def present(self, names: Collection[str]) -> list[str]:
        """Return those of `names` that have a value, in order."""
        inner = {name.partition(".")[0] for name in names if "." in name}
        return sorted(
            name
            for name, value in _paths(self._values, inner)
            if name in names and not says_nothing(value)
        )

    def text(self, name: str, default: str = "") -> str:
        """Return a text. Raises `Malformed`."""
        return self._converted(name, _text, default)

    def texts(self, name: str) -> list[str]:
        """Return a list of strings, which may be sent as one comma-separated text."""
        empty: list[str] = []
        return self._converted(name, _texts, empty)

    def pairs(self, name: str) -> dict[str, str]:
        """Return a map of strings, which may be sent as a list of `key=value`."""
        empty: dict[str, str] = {}
        return self._converted(name, _pairs, empty)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        return self._converted(name, _flag, default)

    def number(self, name: str, default: int = 0) -> int:
        """Return an integer."""
        return self._converted(name, _number, default)

    def strict_number(self, name: str) -> int:
        """Return an integer. Raises `Malformed` if it has a fraction or an exponent, such as `1.0`.

        Vault's own paths reject such numbers.
        """
        if isinstance(self._values.get(name), float):
            problem = "'' cannot parse value as 'int': strconv.ParseInt: invalid syntax"
            raise Malformed(
                f"Field validation failed: error converting input for field {quote(name)}: {problem}"
            )
        return self.number(name)

    def seconds(self, name: str, default: int = 0) -> int:
        """Return a non-negative duration in seconds."""
        return self._converted(name, _positive_seconds, default)

    def signed_seconds(self, name: str, default: int = 0) -> int:
        """Return a duration in seconds."""
        return self._converted(name, seconds, default)

    def items(self, name: str) -> list["RequestFields"]:
        """Return a list of objects, each as a `RequestFields`."""
        value = self._values.get(name)
        objects = value if isinstance(value, list) else []
        return [RequestFields(value) for value in objects if isinstance(value, dict)]

    def inner(self, name: str) -> "RequestFields":
        """Return the fields of an object; no fields if the value is empty. Raises `Malformed`."""
        return RequestFields(self._converted(name, _object, {}))

    def raw(self, name: str) -> object:
        """Return a value as sent."""
        return self._values.get(name)

    def _converted(self, name: str, convert: Callable[[object], T], default: T) -> T:
        if name not in self._values:
            return default
        try:
            return convert(self._values[name])
        except _Unconvertible as error:
            raise Malformed(f"error converting input for field {quote(name)}: {error}") from None


def parse(body: bytes, content_type: str) -> Values:
    """Return the fields of a body; an empty body and null have no fields. Raises `Malformed`."""
    # Only the start is stripped, because stripping a long body would hold the GIL.
    is_json = body[:MAX_FORM].lstrip()[:1] in (b"{", b"[")  # curl declares every body as a form
    if content_type.partition(";")[0].strip().lower() == _FORM and not is_json:
        return _form(body)
    if len(body) <= MAX_FORM and not body.strip():
        return {}
    if len(body) > MAX_VALUES and (excess := excess_of_values(body, MAX_VALUES)):
        limit = excess.replace("JSON ", "")
        raise Malformed(f"error parsing JSON: more than {limit}; send fewer in one request")
    try:
        values = json_steps.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed("error parsing JSON") from error
    if not isinstance(values, dict | None):
        raise Malformed("error parsing JSON")
    return values or {}


def of_query(pairs: Iterable[tuple[str, str]]) -> Values:
    """Return query parameters as fields; a repeated parameter becomes a list."""
    values: dict[str, object] = {}
    for name, value in pairs:
        before = values.get(name)
        if before is None:
            values[name] = value
        else:
            values[name] = [*(before if isinstance(before, list) else [before]), value]
    return values


def _form(body: bytes) -> Values:
    if len(body) > MAX_FORM:
        raise Malformed(f"the form has {len(body)} bytes, more than {MAX_FORM}: send it as JSON")
    from daemon.text import url_forms  # imported late, because few requests are forms

    try:
        pairs = url_forms.pairs(body, MAX_FIELDS)
    except ValueError as error:
        raise Malformed("error parsing form data") from error
    return of_query(pairs)


# --- conversions --------------------------------------------------------------------------------


def _text(value: object, path: str = "") -> str:
    match value:
        case None:
            return ""
        case bool():
            return "1" if value else "0"
        case str():
            return value
        case int() | float():
            return str(value)
        case _:
            raise _Unconvertible(_wrong_type(value, "string", path))


def _texts(value: object) -> list[str]:
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    if not isinstance(value, list):
        return [_first_text(value, 0)]
    return [_first_text(element, index).strip() for index, element in enumerate(value)]


def _first_text(value: object, index: int) -> str:
    try:
        return _text(value, f"[{index}]")
    except _Unconvertible as error:
        raise _Unconvertible(f"1 error(s) decoding:\n\n* {error}") from None


def _object(value: object) -> Values:
    if value is None or value == "" or value == []:
        return {}
    if not isinstance(value, dict):
        raise _Unconvertible(f"'' expected a map, got '{_kind(value)}'")
    return value


def _kind(value: object) -> str:
    """Return the type of a JSON value that is not an object, in Go's terms."""
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case list():
            return "slice"
        case _:
            return "json.Number"


def _pairs(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, dict):
        return {str(key): _text(member, f"[{key}]") for key, member in value.items()}
    items = value if isinstance(value, list) else [value]
    pairs = {}
    for pair in map(_text, items):
        key, equals, text = pair.partition("=")
        if not equals:
            raise _Unconvertible(f"invalid key pair {quote(pair)}")
        pairs[key] = text
    return pairs


def _flag(value: object) -> bool:
    match value:
        case None:
            return False
        case bool():
            return value
        case str() | int() | float() if str(value) in _TRUE | _FALSE:
            return str(value) in _TRUE
        case str() | int() | float():
            raise _Unconvertible(
                f"cannot parse '' as bool: strconv.ParseBool: parsing {quote(str(value))}: "
                "invalid syntax"
            )
        case _:
            raise _Unconvertible(_wrong_type(value, "bool", ""))


def _number(value: object) -> int:
    match value:
        case None | "":
            return 0
        case bool():
            return int(value)
        case int() if value in _INT64:
            return value
        case float() if value.is_integer() and int(value) in _INT64:
            return int(value)
        case str() if _INTEGER.fullmatch(value) and parse_integer(value) in _INT64:
            return parse_integer(value)
        case str() | int() | float():
            problem = "value out of range" if _INTEGER.fullmatch(str(value)) else "invalid syntax"
            raise _Unconvertible(
                f"cannot parse '' as int: strconv.ParseInt: parsing {quote(str(value))}: {problem}"
            )
        case _:
            raise _Unconvertible(_wrong_type(value, "int", ""))


def _positive_seconds(value: object) -> int:
    duration = seconds(value)
    if duration < 0:
        raise _Unconvertible(f"cannot provide negative value '{duration}'")
    return duration


def seconds(value: object) -> int:
    """Return a duration in whole seconds, from a number or from `90`, `30m`, `1h30m`, `2d`."""
    match value:
        case None | "":
            return 0
        case bool():
            raise _Unconvertible("could not parse duration from input")
        case int() | float() if abs(value) < _LONGEST:
            return int(value)
        case str():
            return _seconds_of_text(value)
        case _:
            raise _Unconvertible("could not parse duration from input")


def _seconds_of_text(text: str) -> int:
    if _INTEGER.fullmatch(text):
        duration = parse_integer(text)
    elif text.endswith("d") and _INTEGER.fullmatch(text[:-1]):
        duration = parse_integer(text[:-1]) * 86400
    else:
        duration = int(_duration(text))
    if abs(duration) >= _LONGEST:
        raise _Unconvertible(f"time: invalid duration {quote(text)}")
    return duration


def _duration(text: str) -> float:
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("-", "+") else text
    if not rest:
        raise _Unconvertible(f"time: invalid duration {quote(text)}")
    total, position = 0.0, 0
    while position < len(rest):
        match = _PART.match(rest, position)
        assert match is not None  # noqa: S101  # it matches anything
        digits, unit = match.groups()
        if digits in ("", "."):
            raise _Unconvertible(f"time: invalid duration {quote(text)}")
        if not unit:
            raise _Unconvertible(f"time: missing unit in duration {quote(text)}")
        if unit not in _SECONDS:
            raise _Unconvertible(f"time: unknown unit {quote(unit)} in duration {quote(text)}")
        total += float(digits) * _SECONDS[unit]
        position = match.end()
    return sign * min(total, _LONGEST)


def is_duration(text: str) -> str | None:
    """Return why a text is not a duration, or None if it is one."""
    try:
        seconds(text)
    except _Unconvertible as error:
        return str(error)
    return None


def _wrong_type(value: object, expected: str, path: str) -> str:
    kind = "map[string]interface {}" if isinstance(value, dict) else "[]interface {}"
    return (
        f"'{path}' expected type '{expected}', got unconvertible type '{kind}', "
        f"value: '{_shown(value)}'"
    )


def _shown(value: object) -> str:
    """Format a value approximately as Go does."""
    match value:
        case dict():
            inner = " ".join(f"{key}:{_shown(member)}" for key, member in sorted(value.items()))
            return f"map[{inner}]"
        case list():
            return f"[{' '.join(map(_shown, value))}]"
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)
