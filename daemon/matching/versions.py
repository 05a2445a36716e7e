"""Version constraints such as `>= 1.2, < 2.0` or `~> 1.2.3`.

Two dialects share the order of versions, in which build metadata does not matter. Under
`version` a pre-release part may follow without a dash, a pre-release only meets constraints that
name one of the same numbers, and `~>` is known; under `semver` none of this is so. The vectors
in tests/wire/golden/hcl/version-constraints.json are the measure, and the errors are the peer's.
"""

import re
from enum import Enum
from itertools import zip_longest

import msgspec

from storage.errors import Invalid


class Dialect(Enum):
    """How a constraint is read, named by its operator."""

    VERSION = "version"
    SEMVER = "semver"


def _grammar(dash: str) -> str:
    rest = r"[0-9A-Za-z\-~]*(?:\.[0-9A-Za-z\-~]+)*"
    build = r"(?:\+[0-9A-Za-z\-~]+(?:\.[0-9A-Za-z\-~]+)*)?"
    return rf"v?([0-9]+(?:\.[0-9]+)*)(?:-([0-9]{rest})|{dash}([A-Za-z\-~]{rest}))?{build}"


_LOOSE, _STRICT = _grammar("-?"), _grammar("-")
_SPACE = r"[\t\n\f\r ]*+"  # possessive: many spaces are read once
_VERSION = re.compile(_LOOSE)
_TERM = {
    Dialect.VERSION: re.compile(rf"{_SPACE}(~>|!=|>=|<=|=|>|<|){_SPACE}{_LOOSE}{_SPACE}"),
    Dialect.SEMVER: re.compile(rf"{_SPACE}(!=|>=|<=|=|>|<|){_SPACE}{_STRICT}{_SPACE}"),
}
_MALFORMED = {Dialect.VERSION: "malformed", Dialect.SEMVER: "Malformed"}

_ORDERS = {  # operator: how a version may stand to the wanted one
    "": (0,),
    "=": (0,),
    "!=": (-1, 1),
    "<": (-1,),
    "<=": (-1, 0),
    ">": (1,),
    ">=": (0, 1),
    "~>": (0, 1),
}
_PADDED = 3  # numbers of a version; `1.2` is `1.2.0`
_MOST = 2**63 - 1


class _Version(msgspec.Struct, frozen=True):
    """A version: its numbers, padded; how many were written; its pre-release part."""

    numbers: tuple[int, ...]
    written: int
    pre: str


class _Term(msgspec.Struct, frozen=True):
    """One part of a constraint."""

    operator: str
    wanted: _Version


def problem(constraint: str, dialect: Dialect) -> str | None:
    """Return why a text is no constraint, in the words of the peer; None when it is one."""
    try:
        _terms(constraint, dialect)
    except Invalid as error:
        return str(error)
    return None


def satisfies(version: str, constraint: str, dialect: Dialect) -> bool:
    """Tell whether a version meets every part of a constraint.

    Raises `Invalid` when either is malformed.
    """
    terms = _terms(constraint, dialect)
    match = _VERSION.fullmatch(version)
    if match is None:
        raise Invalid(f"malformed version: {version}")
    found = _version(*match.groups())
    return all(_meets(found, term, dialect) for term in terms)


# ---- reading -----------------------------------------------------------------------------------


def _terms(constraint: str, dialect: Dialect) -> list[_Term]:
    return [_term(text, dialect) for text in constraint.split(",")]


def _term(text: str, dialect: Dialect) -> _Term:
    match = _TERM[dialect].fullmatch(text)
    if match is None:
        raise Invalid(f"{_MALFORMED[dialect]} constraint: {text}")
    operator, *parts = match.groups()
    return _Term(operator, _version(*parts))


def _version(numbers: str, pre_number: str | None, pre_word: str | None) -> _Version:
    found = tuple(_number(digits) for digits in numbers.split("."))
    padding = (0,) * (_PADDED - len(found))
    return _Version(found + padding, len(found), pre_number or pre_word or "")


def _number(digits: str) -> int:
    number = _bounded(digits)
    if number > _MOST:
        raise Invalid(
            f'error parsing version: strconv.ParseInt: parsing "{digits}": value out of range'
        )
    return number


def _bounded(digits: str) -> int:
    """Return a number, or some other that is too large too: reading many digits takes long."""
    return int(digits.lstrip("0")[: len(str(_MOST)) + 1] or "0")


# ---- comparing ---------------------------------------------------------------------------------


def _meets(version: _Version, term: _Term, dialect: Dialect) -> bool:
    if _order(version, term.wanted) not in _ORDERS[term.operator]:
        return False
    match term.operator:
        case "" | "=" | "!=":
            return True
        case "~>":
            return _same_kind(version, term.wanted) and _close(version, term.wanted)
        case _:
            return dialect is Dialect.SEMVER or _same_kind(version, term.wanted)


def _same_kind(version: _Version, wanted: _Version) -> bool:
    """Tell whether a pre-release, if it is one, is one that the constraint speaks of."""
    return not version.pre or (bool(wanted.pre) and version.numbers == wanted.numbers)


def _close(version: _Version, wanted: _Version) -> bool:
    """Tell whether all but the last number that the constraint writes are the same."""
    if wanted.pre and not version.pre:
        return False
    if len(wanted.numbers) > len(version.numbers):
        return False
    fixed = wanted.written - 1
    return (
        version.numbers[:fixed] == wanted.numbers[:fixed]
        and version.numbers[len(wanted.numbers) - 1] >= wanted.numbers[-1]
    )


def _order(left: _Version, right: _Version) -> int:
    """Return -1, 0 or 1: the order of two versions."""
    if left.numbers == right.numbers:
        return _order_of_pre_releases(left.pre, right.pre)
    # The peer's way: where one has more numbers, all zeros, a pre-release does not matter.
    pairs = zip_longest(left.numbers, right.numbers, fillvalue=0)
    return next((1 if one > other else -1 for one, other in pairs if one != other), 0)


def _order_of_pre_releases(left: str, right: str) -> int:
    if left == right:
        return 0
    if not left or not right:
        return -1 if left else 1
    parts = zip_longest(left.split("."), right.split("."), fillvalue="")
    return next((order for pair in parts if (order := _order_of_parts(*pair))), 0)


def _order_of_parts(left: str, right: str) -> int:
    """Return the order of two parts of a pre-release: numbers come before words."""
    if left == right:
        return 0
    if not left:
        return -_order_of_parts(right, left)
    one, other = _part_number(left), _part_number(right)
    if not right:
        # The peer's way: a missing part is less than a number, but more than a word.
        return -1 if one is None else 1
    if one is None and other is None:
        return 1 if left > right else -1
    if one is None or other is None:
        return 1 if one is None else -1
    return 1 if one > other else -1


def _part_number(part: str) -> int | None:
    """Return the number that a part of a pre-release is; None when it is a word."""
    digits = part.removeprefix("-")
    if not digits.isdecimal() or (number := _bounded(digits)) > _MOST:
        return None
    return number if digits == part else -number
