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

    def value(self, at: int, depth: int) -> int:
        """Return the offset after the value that begins at or after `at`."""
        if depth > self.max_depth:
            raise Malformed(f"the body is nested more than {self.max_depth} levels deep")
        at = self.skip(at)
        if not depth and at >= len(self.text):
            raise Malformed("EOF")
        first = self.byte(at)
        if first == b"{"[0]:
            return self.object(at + 1, depth)
        if first == b"["[0]:
            return self.array(at + 1, depth)
        if first == b'"'[0]:
            return self.string(at + 1)
        if literal := _LITERALS.get(first):
            return self.literal(at, literal)
        if first == b"-"[0] or b"0"[0] <= first <= b"9"[0]:
            return self.number(at)
        raise self.invalid(at, "looking for beginning of value")

    def object(self, at: int, depth: int) -> int:
        at = self.skip(at)
        if self.byte(at) == b"}"[0]:
            return at + 1
        while True:
            at = self.skip(at)
            if self.byte(at) != b'"'[0]:
                raise self.invalid(at, "looking for beginning of object key string")
            at = self.skip(self.string(at + 1))
            if self.byte(at) != b":"[0]:
                raise self.invalid(at, "after object key")
            at = self.skip(self.value(at + 1, depth + 1))
            if self.byte(at) == b"}"[0]:
                return at + 1
            if self.byte(at) != b","[0]:
                raise self.invalid(at, "after object key:value pair")
            at += 1

    def array(self, at: int, depth: int) -> int:
        at = self.skip(at)
        if self.byte(at) == b"]"[0]:
            return at + 1
        while True:
            at = self.skip(self.value(at, depth + 1))
            if self.byte(at) == b"]"[0]:
                return at + 1
            if self.byte(at) != b","[0]:
                raise self.invalid(at, "after array element")
            at += 1

    def string(self, at: int) -> int:
        while True:
            byte = self.byte(at)
            if byte == b'"'[0]:
                return at + 1
            if byte < 0x20:
                raise self.invalid(at, "in string literal")
            at = self.escape(at + 1) if byte == b"\\"[0] else at + 1

    def escape(self, at: int) -> int:
        byte = self.byte(at)
        if byte in _ESCAPES:
            return at + 1
        if byte != b"u"[0]:
            raise self.invalid(at, "in string escape code")
        for position in range(at + 1, at + 5):
            if self.byte(position) not in _HEX:
                raise self.invalid(position, "in \\u hexadecimal character escape")
        return at + 5

    def literal(self, at: int, literal: bytes) -> int:
        for position, expected in enumerate(literal[1:], at + 1):
            if self.byte(position) != expected:
                raise self.invalid(
                    position, f"in literal {literal.decode()} (expecting '{chr(expected)}')"
                )
        return at + len(literal)

    def number(self, at: int) -> int:
        if match := _NUMBER.match(self.text, at):
            end = match.end()
            if self.text[end : end + 1] == b".":
                raise self.invalid(end + 1, "after decimal point in numeric literal")
            if self.text[end : end + 1] in (b"e", b"E"):
                raise self.invalid(end + 1, "in exponent of numeric literal")
            return end
        raise self.invalid(at + 1, "in numeric literal")

    def skip(self, at: int) -> int:
        while at < len(self.text) and self.text[at] in _SPACE:
            at += 1
        return at

    def byte(self, at: int) -> int:
        if at >= len(self.text):
            raise Malformed("unexpected EOF")
        return self.text[at]

    def invalid(self, at: int, where: str) -> Malformed:
        return Malformed(f"invalid character {_quoted(self.byte(at))} {where}")


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
