"""Produce the errors of Go's JSON decoder for invalid input.

Only used for invalid input, or for data after the first value. The scanner follows RFC 8259; the
texts are those that Nomad's clients and scripts match.
"""

import re

from storage.errors import Malformed
from storage.records import numbers

_SPACE = b" \t\r\n"
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITERALS = {b"t"[0]: b"true", b"f"[0]: b"false", b"n"[0]: b"null"}
_ESCAPES = b'"\\/bfnrt'
_HEX = b"0123456789abcdefABCDEF"


def kind(value: object) -> str:
    """Return the JSON type of a value, as Go's errors name it."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "number"


def number(value: float) -> str:
    """Format a number as Go's errors show it: nearly as it is written in the document."""
    return numbers.shorten(repr(value).replace("e+", "e"))


def end_of_first_value(text: bytes, max_depth: int) -> int:
    """Return the offset after the first value in a text. Raises `Malformed` with Go's text."""
    return _Scanner(text, max_depth).value(0, 0)


class _Scanner:
    def __init__(self, text: bytes, max_depth: int) -> None:
        self.text, self.max_depth = text, max_depth

    def value(self, offset: int, depth: int) -> int:
        """Return the offset after the value that begins at or after `offset`."""
        if depth > self.max_depth:
            raise Malformed(f"the body is nested more than {self.max_depth} levels deep")
        offset = self.skip(offset)
        if not depth and offset >= len(self.text):
            raise Malformed("EOF")
        first = self.byte(offset)
        if first == b"{"[0]:
            return self.object(offset + 1, depth)
        if first == b"["[0]:
            return self.array(offset + 1, depth)
        if first == b'"'[0]:
            return self.string(offset + 1)
        if literal := _LITERALS.get(first):
            return self.literal(offset, literal)
        if first == b"-"[0] or b"0"[0] <= first <= b"9"[0]:
            return self.number(offset)
        raise self.invalid(offset, "looking for beginning of value")

    def object(self, offset: int, depth: int) -> int:
        offset = self.skip(offset)
        if self.byte(offset) == b"}"[0]:
            return offset + 1
        while True:
            offset = self.skip(offset)
            if self.byte(offset) != b'"'[0]:
                raise self.invalid(offset, "looking for beginning of object key string")
            offset = self.skip(self.string(offset + 1))
            if self.byte(offset) != b":"[0]:
                raise self.invalid(offset, "after object key")
            offset = self.skip(self.value(offset + 1, depth + 1))
            if self.byte(offset) == b"}"[0]:
                return offset + 1
            if self.byte(offset) != b","[0]:
                raise self.invalid(offset, "after object key:value pair")
            offset += 1

    def array(self, offset: int, depth: int) -> int:
        offset = self.skip(offset)
        if self.byte(offset) == b"]"[0]:
            return offset + 1
        while True:
            offset = self.skip(self.value(offset, depth + 1))
            if self.byte(offset) == b"]"[0]:
                return offset + 1
            if self.byte(offset) != b","[0]:
                raise self.invalid(offset, "after array element")
            offset += 1

    def string(self, offset: int) -> int:
        while True:
            byte = self.byte(offset)
            if byte == b'"'[0]:
                return offset + 1
            if byte < 0x20:
                raise self.invalid(offset, "in string literal")
            offset = self.escape(offset + 1) if byte == b"\\"[0] else offset + 1

    def escape(self, offset: int) -> int:
        byte = self.byte(offset)
        if byte in _ESCAPES:
            return offset + 1
        if byte != b"u"[0]:
            raise self.invalid(offset, "in string escape code")
        for position in range(offset + 1, offset + 5):
            if self.byte(position) not in _HEX:
                raise self.invalid(position, "in \\u hexadecimal character escape")
        return offset + 5

    def literal(self, offset: int, literal: bytes) -> int:
        for position, expected in enumerate(literal[1:], offset + 1):
            if self.byte(position) != expected:
                raise self.invalid(
                    position, f"in literal {literal.decode()} (expecting '{chr(expected)}')"
                )
        return offset + len(literal)

    def number(self, offset: int) -> int:
        if match := _NUMBER.match(self.text, offset):
            end = match.end()
            if self.text[end : end + 1] == b".":
                raise self.invalid(end + 1, "after decimal point in numeric literal")
            if self.text[end : end + 1] in (b"e", b"E"):
                raise self.invalid(end + 1, "in exponent of numeric literal")
            return end
        raise self.invalid(offset + 1, "in numeric literal")

    def skip(self, offset: int) -> int:
        while offset < len(self.text) and self.text[offset] in _SPACE:
            offset += 1
        return offset

    def byte(self, offset: int) -> int:
        if offset >= len(self.text):
            raise Malformed("unexpected EOF")
        return self.text[offset]

    def invalid(self, offset: int, where: str) -> Malformed:
        return Malformed(f"invalid character {_quoted(self.byte(offset))} {where}")


_QUOTED = {
    "'": r"'\''",
    '"': "'\"'",
    "\\": r"'\\'",
    "\a": r"'\a'",
    "\b": r"'\b'",
    "\f": r"'\f'",
    "\n": r"'\n'",
    "\r": r"'\r'",
    "\t": r"'\t'",
    "\v": r"'\v'",
}


def _quoted(byte: int) -> str:
    character = chr(byte)
    if character in _QUOTED:
        return _QUOTED[character]
    return f"'{character}'" if character.isprintable() else f"'\\x{byte:02x}'"
