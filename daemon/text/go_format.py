"""Values in Go's format, because clients and scripts match texts that contain such values.

The module formats durations, quoted text, lists, errors about numbers, and several errors in one
text.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

from storage.records.base import HOUR, MINUTE, SECOND

_MICROSECOND = 1_000
_MILLISECOND = 1_000_000
_LEAST_EXPONENT, _LARGE_EXPONENT = -4, 6  # between them a number needs no exponent


def duration(nanoseconds: int) -> str:
    """Return a duration as text, in the largest units that fit.

    >>> duration(90 * SECOND), duration(1_500_000), duration(0)
    ('1m30s', '1.5ms', '0s')
    """
    if nanoseconds < 0:
        return "-" + duration(-nanoseconds)
    if nanoseconds == 0:
        return "0s"
    if nanoseconds < _MICROSECOND:
        return f"{nanoseconds}ns"
    if nanoseconds < _MILLISECOND:
        return f"{_decimal(nanoseconds, _MICROSECOND)}µs"
    if nanoseconds < SECOND:
        return f"{_decimal(nanoseconds, _MILLISECOND)}ms"
    hours, rest = divmod(nanoseconds, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    seconds = f"{_decimal(rest, SECOND)}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    decimals = f"{rest:0{len(str(unit)) - 1}}".rstrip("0")
    return f"{whole}.{decimals}" if decimals else str(whole)


def decimal(value: float) -> str:
    """Return a float with the fewest digits that identify it.

    >>> decimal(8080.0), decimal(1e6), decimal(0.5)
    ('8080', '1e+06', '0.5')
    """
    number = Decimal(repr(value)).normalize()
    mantissa, _, exponent = f"{number:e}".partition("e")
    if _LEAST_EXPONENT <= int(exponent) < _LARGE_EXPONENT:
        return f"{number:f}"
    return f"{mantissa}e{int(exponent):+03}"


def format_list(items: Iterable[object]) -> str:
    """Return a list as Go prints one: `[a b]`."""
    return f"[{' '.join(map(str, items))}]"


# ---- quoted text --------------------------------------------------------------------------------

_ESCAPES = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    "\\": r"\\",
    '"': r"\"",
}


def quote(text: str, *, ascii_only: bool = False) -> str:
    r"""Return text in double quotes, with escapes for unprintable characters.

    >>> print(quote('a"b'))
    "a\"b"
    """
    needs_escape = not text.isprintable() or '"' in text or "\\" in text
    if not needs_escape and (text.isascii() or not ascii_only):
        return f'"{text}"'
    return f'"{"".join(_shown(char, ascii_only) for char in text)}"'


def _shown(char: str, ascii_only: bool) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    code = ord(char)
    if char.isprintable() and (code < 0x80 or not ascii_only):
        return char
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# ---- numbers ------------------------------------------------------------------------------------

_UINT = re.compile(r"[0-9]+")


def uint_error(text: str, base: int, bits: int) -> str | None:
    """Return why Go cannot parse `text` as an unsigned number of `bits` bits, or None."""
    problem = f"strconv.ParseUint: parsing {quote(text)}"
    if not _UINT.fullmatch(text) or any(int(digit) >= base for digit in text):
        return f"{problem}: invalid syntax"
    digits = text.lstrip("0")
    if len(digits) > bits or int(digits or "0", base) >= 1 << bits:
        return f"{problem}: value out of range"
    return None


# ---- several errors in one text ------------------------------------------------------------------


def multi_error(errors: Sequence[str]) -> str:
    r"""Return several errors as one text, in the format that clients know.

    >>> multi_error(["a", "b"])
    '2 errors occurred:\n\t* a\n\t* b\n\n'
    """
    if not errors:
        return ""
    head = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
    points = "\n\t".join(f"* {error}" for error in errors)
    return f"{head} occurred:\n\t{points}\n\n"


def wrap_error(subject: str, errors: Iterable[str]) -> Iterator[str]:
    """Yield the errors of an object as one error with the object's name, if there are errors."""
    if messages := list(errors):
        yield f"{subject}: {multi_error(messages)}"


def join_errors(errors: Iterable[str]) -> Iterator[str]:
    """Yield several errors as one error, or nothing if there are none."""
    if messages := list(errors):
        yield multi_error(messages)
