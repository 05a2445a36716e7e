"""Whole numbers as texts of any length. Pure.

Python refuses to read more than 4300 digits, with words of its own, because that takes long. All
that we have to know of a number with so many digits is that it is out of every range.
"""

_MOST_DIGITS = 40  # 64 bits have 20; whatever is longer is too large
_SHOWN = 20


def whole(text: str) -> int:
    """Return the number that digits, with or without a sign, stand for. Raises `ValueError`.

    For one with more than 40 digits it is some other that is too large, or too small, as well.

    >>> whole("-007"), len(str(whole("9" * 5000)))
    (-7, 40)
    """
    sign, digits = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    return sign * int(digits.lstrip("0")[:_MOST_DIGITS] or digits[:1])


Ranges = tuple[range, ...]
_MOST_RANGES = 1000


def ranges(text: str) -> Ranges:
    """Return the ranges that a text such as `0,100-200` names. Raises `ValueError`.

    >>> ranges("0,100-200"), ranges("")
    ((range(0, 1), range(100, 201)), ())
    """
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if len(words) > _MOST_RANGES:
        raise ValueError(f"{len(words)} ranges are more than {_MOST_RANGES}")
    return tuple(_range(word) for word in words)


def _range(word: str) -> range:
    first, dash, last = (part.strip() for part in word.partition("-"))
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        raise ValueError(f"{word!r} is neither a number nor a range such as 100-200")
    low, high = whole(first), whole(last or first)
    if low > high:
        raise ValueError(f"{word!r} ends before it begins")
    return range(low, high + 1)


def short(text: str) -> str:
    """Return the text of a number as an error shows it: whole, or its begin and its length.

    >>> short("123"), short("9" * 5000)
    ('123', '99999999999999999999... (5000 digits)')
    """
    if len(text) <= 2 * _MOST_DIGITS:
        return text
    return f"{text[:_SHOWN]}... ({len(text.lstrip('+-'))} digits)"
