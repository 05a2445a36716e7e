"""Query parameters: Nomad's syntax and error texts."""

import re
from urllib.parse import parse_qsl

from storage.errors import Malformed
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.numbers import parse_integer, shorten

MAX_PARAMETERS = 100

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}
_PART = re.compile(r"([0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(ns|us|µs|μs|ms|s|m|h)")
_LONGEST = 2**63 - 1  # nanoseconds
_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)


class InvalidParameter(Malformed):
    """A parameter error that Nomad reports as 500 instead of 400 (docs/compatibility.md)."""


class QueryParameters:
    """The query parameters; for a repeated parameter, the first value counts.

    `further` are fallback values from elsewhere in the request.
    """

    def __init__(self, text: str, **further: str) -> None:
        self.pairs = _pairs(text) if text else []
        self._values: dict[str, str] = {}
        for key, value in self.pairs:
            self._values.setdefault(key, value)
        for key, value in further.items():
            if value and not self._values.get(key):
                self.pairs.append((key, value))
                self._values[key] = value

    def __bool__(self) -> bool:
        return bool(self._values)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        """Return a parameter as text."""
        return self._values.get(name, default)

    def flag(self, name: str) -> bool:
        """Return a boolean parameter; absent or empty means false.

        Raises `InvalidParameter` with Nomad's error text.
        """
        value = self.text(name)
        if value in _TRUE:
            return True
        if value in _FALSE or not value:
            return False
        raise InvalidParameter(
            f'Failed to parse value of "{name}" ({value}) as a bool: '
            f'strconv.ParseBool: parsing "{value}": invalid syntax'
        )

    def number(self, name: str) -> int | None:
        """Return an integer parameter, or None if it is absent. Raises `InvalidParameter`."""
        value = self.text(name)
        if not value:
            return None
        is_integer = re.fullmatch(r"[+-]?[0-9]+", value)
        if is_integer and parse_integer(value) in _INT64:
            return parse_integer(value)
        reason = "value out of range" if is_integer else "invalid syntax"
        raise InvalidParameter(
            f'Failed to parse value of "{name}" ({shorten(value)}) as a int: '
            f'strconv.Atoi: parsing "{shorten(value)}": {reason}'
        )

    def natural(self, name: str) -> int | None:
        """Return a non-negative integer parameter, or None if absent. Raises `InvalidParameter`."""
        value = self.text(name)
        if not value:
            return None
        is_integer = re.fullmatch(r"[0-9]+", value)
        if is_integer and parse_integer(value) in _UINT64:
            return parse_integer(value)
        reason = "value out of range" if is_integer else "invalid syntax"
        raise InvalidParameter(
            f'Failed to parse value of "{name}" ({shorten(value)}) as a uint64: '
            f'strconv.ParseUint: parsing "{shorten(value)}": {reason}'
        )

    def own_flag(self, name: str) -> bool:
        """Return a boolean parameter that Nomad does not have. Raises `Malformed`."""
        try:
            return self.flag(name)
        except InvalidParameter:
            value = shorten(self.text(name))
            raise Malformed(f"{name} = {value!r} must be true or false") from None

    def own_natural(self, name: str) -> int | None:
        """Return a non-negative integer parameter that Nomad does not have. Raises `Malformed`."""
        try:
            return self.natural(name)
        except InvalidParameter:
            value = shorten(self.text(name))
            raise Malformed(
                f"{name} = {value!r} must be an integer from 0 to {_UINT64[-1]}"
            ) from None


def _pairs(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise Malformed(f"the query has more than {MAX_PARAMETERS} parameters") from None


def duration(text: str) -> int | None:
    """Return a duration such as `1m30s` in nanoseconds; None if it is invalid."""
    if text == "0":
        return 0
    sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    total, position = 0, 0
    while match := _PART.match(rest, position):
        span = float(match[1]) * _UNITS[match[2]]
        if span > _LONGEST:
            return None
        total += round(span)
        position = match.end()
    return sign * total if position and position == len(rest) else None
