"""Parse integers of any length. No I/O.

Python refuses to parse more than 4300 digits, because that takes long, and raises an error about
the number of digits. Callers should instead report that such a number is out of range.
"""

_MOST_DIGITS = 40  # 64 bits have 20; a longer number is too large
_SHOWN = 20


def parse_integer(text: str) -> int:
    """Parse an integer. Raises `ValueError`.

    Only the first 40 digits of a number count. A longer number is out of range in any case.

    >>> parse_integer("-007"), len(str(parse_integer("9" * 5000)))
    (-7, 40)
    """
    sign, digits = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    return sign * int(digits.lstrip("0")[:_MOST_DIGITS] or digits[:1])


Ranges = tuple[range, ...]
_MOST_RANGES = 1000


def ranges(text: str) -> Ranges:
    """Parse ranges such as `0,100-200`. Raises `ValueError`.

    >>> ranges("0,100-200"), ranges("")
    ((range(0, 1), range(100, 201)), ())
    """
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if len(words) > _MOST_RANGES:
        raise ValueError(f"{len(words)} ranges exceed the maximum of {_MOST_RANGES}")
    return tuple(_range(word) for word in words)


def _range(word: str) -> range:
    first, dash, last = (part.strip() for part in word.partition("-"))
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        raise ValueError(f"{word!r} is neither a number nor a range such as 100-200")
    low, high = parse_integer(first), parse_integer(last or first)
    if low > high:
        raise ValueError(f"{word!r} ends before it begins")
    return range(low, high + 1)


def shorten(text: str) -> str:
    """Return a number for an error message: complete, or its beginning and its length.

    >>> shorten("123"), shorten("9" * 5000)
    ('123', '99999999999999999999... (5000 digits)')
    """
    if len(text) <= 2 * _MOST_DIGITS:
        return text
    return f"{text[:_SHOWN]}... ({len(text.lstrip('+-'))} digits)"
