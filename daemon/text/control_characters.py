"""Texts from other users, with symbols instead of control characters. No I/O.

A job author chooses names, messages and error lines that an operator reads. A control character in
them could move the cursor, hide lines, or change the clipboard. Other characters change the
direction of text. Each such character is replaced by a visible symbol.
"""

import re

_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROL = re.compile(f"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029{_DIRECTIONS}]")
# Inside JSON strings, all other control characters are already escaped.
_IN_JSON = re.compile(f"[\x7f-\x9f\u2028\u2029{_DIRECTIONS}]")
_SIGNS = 0x2400  # Unicode's symbols for the first 32 control characters
_SPACE, _DELETE, _DELETE_SIGN = 0x20, "\x7f", "\u2421"


def visible(text: str) -> str:
    r"""Return a text on one line with symbols instead of control characters, except for tabs.

    >>> visible("a\x1b[2J\n")
    'a␛[2J␊'
    """
    return text if text.isprintable() else _CONTROL.sub(_sign, text)


def visible_lines(text: str) -> str:
    """Return several lines of text, with symbols for control characters except tabs."""
    if text.isprintable():
        return text
    return "\n".join(map(visible, text.replace("\r\n", "\n").split("\n")))


def visible_json(document: str) -> str:
    r"""Return an equivalent JSON document with escapes instead of control characters.

    >>> visible_json('"\x9b2J"')
    '"\\u009b2J"'
    """
    escaped = _IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", document)
    return escaped.replace("\r", " ")  # in valid JSON, a carriage return is only between values


def _sign(match: re.Match[str]) -> str:
    number = ord(match[0])
    if number < _SPACE:
        return chr(_SIGNS + number)
    return _DELETE_SIGN if match[0] == _DELETE else f"\\u{number:04x}"
