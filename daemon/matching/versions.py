"""Version constraints such as `>= 1.2, < 2.0` or `~> 1.2.3`.

Two dialects order versions in the same way and ignore build metadata. The dialect `version` has
three additional rules. The dash before a pre-release part is optional. A pre-release only satisfies
constraints that name a pre-release with the same numbers. The dialect has the operator `~>`. The
dialect `semver` has none of these rules. The vectors in
tests/wire/golden/hcl/version-constraints.json define the behavior, and the errors are Nomad's.
"""

import re
from enum import Enum
from itertools import zip_longest

import msgspec

from storage.errors import Invalid


class VersionDialect(Enum):
    """The dialect of a version constraint. The value is the operator that selects the dialect."""

    VERSION = "version"
    SEMVER = "semver"


def _grammar(dash: str) -> str:
    rest = r"[0-9A-Za-z\-~]*(?:\.[0-9A-Za-z\-~]+)*"
    build = r"(?:\+[0-9A-Za-z\-~]+(?:\.[0-9A-Za-z\-~]+)*)?"
    return rf"v?([0-9]+(?:\.[0-9]+)*)(?:-([0-9]{rest})|{dash}([A-Za-z\-~]{rest}))?{build}"


_LOOSE, _STRICT = _grammar("-?"), _grammar("-")
_SPACE = r"[\t\n\f\r ]*+"  # possessive: no backtracking over many spaces
_VERSION = re.compile(_LOOSE)
_TERM = {
    VersionDialect.VERSION: re.compile(rf"{_SPACE}(~>|!=|>=|<=|=|>|<|){_SPACE}{_LOOSE}{_SPACE}"),
    VersionDialect.SEMVER: re.compile(rf"{_SPACE}(!=|>=|<=|=|>|<|){_SPACE}{_STRICT}{_SPACE}"),
}
_MALFORMED = {VersionDialect.VERSION: "malformed", VersionDialect.SEMVER: "Malformed"}

_ORDERS = {  # operator: allowed results of the comparison with the constraint
    "": (0,),
    "=": (0,),
    "!=": (-1, 1),
    "<": (-1,),
    "<=": (-1, 0),
    ">": (1,),
    ">=": (0, 1),
    "~>": (0, 1),
}
_PADDED = 3  # minimum count of numbers: `1.2` counts as `1.2.0`
_MOST = 2**63 - 1


class _Version(msgspec.Struct, frozen=True):
    """A version: its padded numbers, the count of explicit numbers, and its pre-release part."""

    numbers: tuple[int, ...]
    written: int
    pre: str


class _Term(msgspec.Struct, frozen=True):
    """A single term of a constraint."""

    operator: str
    wanted: _Version


def constraint_error(constraint: str, dialect: VersionDialect) -> str | None:
    """Return why a constraint is invalid, in Nomad's words; None if it is valid."""
    try:
        _terms(constraint, dialect)
    except Invalid as error:
        return str(error)
    return None


def satisfies(version: str, constraint: str, dialect: VersionDialect) -> bool:
    """Return whether a version satisfies every term of a constraint.

    Raises `Invalid` if either text is malformed.
    """
    terms = _terms(constraint, dialect)
    match = _VERSION.fullmatch(version)
    if match is None:
        raise Invalid(f"malformed version: {version}")
    parsed = _version(*match.groups())
    return all(_meets(parsed, term, dialect) for term in terms)


# --- parsing ---


def _terms(constraint: str, dialect: VersionDialect) -> list[_Term]:
    return [_term(text, dialect) for text in constraint.split(",")]


def _term(text: str, dialect: VersionDialect) -> _Term:
    match = _TERM[dialect].fullmatch(text)
    if match is None:
        raise Invalid(f"{_MALFORMED[dialect]} constraint: {text}")
    operator, *parts = match.groups()
    return _Term(operator, _version(*parts))


def _version(numbers: str, pre_number: str | None, pre_word: str | None) -> _Version:
    parts = tuple(_number(digits) for digits in numbers.split("."))
    padding = (0,) * (_PADDED - len(parts))
    return _Version(parts + padding, len(parts), pre_number or pre_word or "")


def _number(digits: str) -> int:
    number = _bounded(digits)
    if number > _MOST:
        raise Invalid(
            f'error parsing version: strconv.ParseInt: parsing "{digits}": value out of range'
        )
    return number


def _bounded(digits: str) -> int:
    """Return `digits` as a number. If there are too many, parse only the first ones.

    The result then still exceeds the maximum of a version. Parsing all digits could take long.
    """
    return int(digits.lstrip("0")[: len(str(_MOST)) + 1] or "0")


# --- comparison ---


def _meets(version: _Version, term: _Term, dialect: VersionDialect) -> bool:
    if _order(version, term.wanted) not in _ORDERS[term.operator]:
        return False
    match term.operator:
        case "" | "=" | "!=":
            return True
        case "~>":
            return _same_kind(version, term.wanted) and _close(version, term.wanted)
        case _:
            return dialect is VersionDialect.SEMVER or _same_kind(version, term.wanted)


def _same_kind(version: _Version, constraint: _Version) -> bool:
    """Return whether a version has no pre-release part, or one that the constraint permits."""
    return not version.pre or (bool(constraint.pre) and version.numbers == constraint.numbers)


def _close(version: _Version, constraint: _Version) -> bool:
    """Return whether a version satisfies `~>`.

    The last number may be higher than in the constraint, and all numbers before it must be equal.
    """
    if constraint.pre and not version.pre:
        return False
    if len(constraint.numbers) > len(version.numbers):
        return False
    fixed = constraint.written - 1
    return (
        version.numbers[:fixed] == constraint.numbers[:fixed]
        and version.numbers[len(constraint.numbers) - 1] >= constraint.numbers[-1]
    )


def _order(version: _Version, right: _Version) -> int:
    """Return -1 if the first version is lower than the second, 0 if they are equal, or 1."""
    if version.numbers == right.numbers:
        return _order_of_pre_releases(version.pre, right.pre)
    # As in Nomad: if one version has more numbers, all zeros, the pre-release part is ignored.
    pairs = zip_longest(version.numbers, right.numbers, fillvalue=0)
    return next(
        (
            1 if left_part > right_part else -1
            for left_part, right_part in pairs
            if left_part != right_part
        ),
        0,
    )


def _order_of_pre_releases(left: str, right: str) -> int:
    if left == right:
        return 0
    if not left or not right:
        return -1 if left else 1
    parts = zip_longest(left.split("."), right.split("."), fillvalue="")
    return next((sign for pair in parts if (sign := _order_of_parts(*pair))), 0)


def _order_of_parts(left: str, right: str) -> int:
    """Return the order of two pre-release parts as -1, 0 or 1. Numbers sort before words."""
    if left == right:
        return 0
    if not left:
        return -_order_of_parts(right, left)
    left_number, right_number = _part_number(left), _part_number(right)
    if not right:
        # As in Nomad: a missing part is less than a number, but more than a word.
        return -1 if left_number is None else 1
    if left_number is None and right_number is None:
        return 1 if left > right else -1
    if left_number is None or right_number is None:
        return 1 if left_number is None else -1
    return 1 if left_number > right_number else -1


def _part_number(part: str) -> int | None:
    """Return a pre-release part as a number; None if it is a word."""
    digits = part.removeprefix("-")
    if not digits.isdecimal() or (number := _bounded(digits)) > _MOST:
        return None
    return number if digits == part else -number
