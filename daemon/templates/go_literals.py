"""Go literals: texts, characters and numbers. No I/O."""

import re

_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL
)
_PLAIN = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
}
_LARGEST = 2**63 - 1
_LONGEST_NUMBER = 100  # characters
_HIGHEST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


def text(written: str) -> str:
    r"""Return the value of a quoted or raw text literal. Raises `ValueError`.

    >>> text('"a"'), text("`b`")
    ('a', 'b')
    """
    if written.startswith("`"):
        return written[1:-1].replace("\r", "")
    return _unescaped(written[1:-1])


def char(written: str) -> int:
    """Return the code point of a character literal. Raises `ValueError`."""
    characters = _unescaped(written[1:-1])
    if len(characters) != 1:
        raise ValueError(f"malformed character constant: {written}")
    return ord(characters)


def number(written: str) -> int | float:
    """Parse a number literal. Raises `ValueError`."""
    if len(written) > _LONGEST_NUMBER:
        raise ValueError("a number is too long")
    digits = written.lower()
    try:
        if any(mark in digits for mark in (".", "e")) and "x" not in digits:
            return float(digits)
        parsed = int(_with_octal(digits), 0)
    except ValueError:
        raise ValueError(f"bad number syntax: {written}") from None
    if not -_LARGEST - 1 <= parsed <= _LARGEST:
        raise ValueError(f"integer overflow: {written}")
    return parsed


def _with_octal(digits: str) -> str:
    """Convert a legacy octal number for Python: `0644` becomes `0o644`. Others stay unchanged."""
    sign = digits[:1] if digits[:1] in ("+", "-") else ""
    rest = digits[len(sign) :]
    if len(rest) > 1 and rest.startswith("0") and rest[1].isdigit():
        return f"{sign}0o{rest[1:]}"
    return digits


def _unescaped(escaped: str) -> str:
    def meant(match: re.Match[str]) -> str:
        hexadecimal = match[1] or match[2] or match[3]
        if hexadecimal or match[4]:
            code = int(hexadecimal, 16) if hexadecimal else int(match[4], 8)
            if code > _HIGHEST or code in _SURROGATES:
                raise ValueError(f"bad character in {escaped!r}")
            return chr(code)
        if match[5] not in _PLAIN:
            raise ValueError(f"bad escape \\{match[5]} in a text")
        return _PLAIN[match[5]]

    return _ESCAPE.sub(meant, escaped)
