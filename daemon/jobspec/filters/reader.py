"""Selectors and values of filter expressions, with the position of syntax errors.

A form is an alternative in the grammar. The reader records the furthest position that any form has
reached, and the texts that were expected at this position.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import TypeVar

from daemon.jobspec.filters.tree import Node, Selector
from daemon.text.go_format import quote
from storage.loop_share import spend

_SPACES = " \t\r\n"
_SPACE = r"[ \t\r\n]"
_END = "!."  # name of the end of the text in expectations
_DIGITS = frozenset("0123456789")
_POSITIVE = _DIGITS - {"0"}
_IDENTIFIER = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/")

_FORM = 5  # µs of CPU time for an attempt to match a form
_T = TypeVar("_T")


class FilterReader:
    """Reader of the parts of an expression. Each method returns its result, or None on mismatch."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.furthest = 0
        self.expected: set[str] = set()
        self.problems: list[str] = []

    # --- failure position ---

    def expect(self, expected: str) -> None:
        """Record an expectation at the current position."""
        if self.at > self.furthest:
            self.furthest = self.at
            self.expected.clear()
        if self.at == self.furthest:
            self.expected.add(expected)

    def expectation(self) -> str:
        """Return the furthest position and the expectations there."""
        expectations = sorted(self.expected - {_END})
        if _END in self.expected:
            expectations.append("EOF")
        *most, last = expectations
        listed = f"{', '.join(most)} or {last}" if most else last
        return f"{self.place(self.furthest)}: no match found, expected: {listed}"

    def place(self, offset: int) -> str:
        """Return a position as line, column and byte offset."""
        begun = self.text[: offset + 1]
        line = begun.count("\n") + 1
        column = offset + 1 if line == 1 else offset - begun.rindex("\n")
        return f"{line}:{column} ({len(self.text[:offset].encode())})"

    def problem(self, rule: str, problem: str, offset: int | None = None) -> None:
        """Record an error with a message, at the current or another position."""
        position = self.place(self.at if offset is None else offset)
        self.problems.append(f'{position}: rule "{rule}": {problem}')

    # --- basic elements ---

    def literal(self, text: str) -> bool:
        """Consume a text, or record that it was expected."""
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        self.expect(quote(text))
        return False

    def one_of(self, description: str, fits: Callable[[str], bool]) -> str:
        """Consume a matching character. `description` names the class of characters in errors."""
        char = self.text[self.at : self.at + 1]
        if char and fits(char):
            self.at += 1
            return char
        self.expect(description)
        return ""

    def many(self, description: str, fits: Callable[[str], bool]) -> str:
        """Consume all matching characters; `description` names their class in errors."""
        start = self.at
        while self.one_of(description, fits):
            pass
        return self.text[start : self.at]

    def space(self) -> bool:
        """Consume white space; return whether there was any."""
        return bool(self.many(_SPACE, _SPACES.__contains__))

    def spaced_words(self, *words: str) -> bool:
        """Consume words with white space before, between and after them."""
        return self.space() and all(self.literal(word) and self.space() for word in words)

    def end(self) -> bool:
        """Return whether the text ends here."""
        if self.at < len(self.text):
            self.expect(_END)
            return False
        return True

    def attempt(self, form: Callable[[], _T | None]) -> _T | None:
        """Return the result of a form; on a mismatch restore the position."""
        spend(_FORM)
        start = self.at
        result = form()
        if result is None:
            self.at = start
        return result

    def first_match(self, *forms: Callable[[], Node | None]) -> Node | None:
        """Return the result of the first matching form."""
        start = self.at
        for form in forms:
            node = form()
            if node is not None:
                return node
            self.at = start
        return None

    # --- selectors ---

    def selector(self) -> Selector | None:
        """Return a selector: names and keys, or a JSON pointer."""
        first = self.identifier()
        if not first:
            return self.attempt(self.pointer)
        path = [first]
        while (part := self.attempt(self.part)) is not None:
            path.append(part)
        return Selector(tuple(path))

    def identifier(self) -> str:
        """Parse a name; return an empty string if there is no name."""
        first = self.one_of("[a-zA-Z]", lambda char: char.isascii() and char.isalpha())
        if not first:
            return ""
        return first + self.many("[a-zA-Z0-9_/]", _IDENTIFIER.__contains__)

    def part(self) -> str | None:
        """Return the next name, key or index of a selector."""
        start = self.at
        if self.literal(".") and (name := self.identifier()):
            return name
        self.at = start
        if (key := self.attempt(self.index)) is not None:
            return key
        number = self.many("[0-9]", _DIGITS.__contains__) if self.literal(".") else ""
        return number or None

    def index(self) -> str | None:
        """Return a key in brackets."""
        if not self.literal("["):
            return None
        self.space()
        key = self.string()
        if key is None:
            self.problem("index", "Invalid index")
            return None
        self.space()
        if not self.literal("]"):
            self.problem("index", "Unclosed index expression")
            return None
        return key

    def pointer(self) -> Selector | None:
        """Return a quoted JSON pointer, which may be an empty string."""
        if not self.literal('"'):
            return None
        parts: list[str] = []
        while self.literal("/"):
            start = self.at
            part = self.many(r"[\pL\pN-_.~:|]", _in_pointer)
            if not part:
                self.at = start - 1
                break
            parts.append(part.replace("~1", "/").replace("~0", "~"))
        return Selector(tuple(parts) or ("",), "/") if self.literal('"') else None

    # --- values ---

    def value(self) -> str | None:
        """Return the compared value: a bare word, a number or a quoted text."""
        selector = self.selector()
        if selector is not None:
            return str(selector)
        number = self.attempt(self.number)
        return self.string() if number is None else number

    def number(self) -> str | None:
        """Return a number as its source text."""
        start = self.at
        self.literal("-")
        if not self.literal("0"):
            if not self.one_of("[1-9]", _POSITIVE.__contains__):
                return None
            self.many("[0-9]", _DIGITS.__contains__)
        begin = self.at
        if not self.literal(".") or not self.many("[0-9]", _DIGITS.__contains__):
            self.at = begin
        text, end = self.text[start : self.at], self.at
        followed = self.space() or self.end() or self.literal(")")
        self.at = end
        if not followed:
            self.problem("number", "Invalid number literal")
            return None
        return text

    def string(self) -> str | None:
        """Return the text between quotes or backticks."""
        start = self.at
        mark = "`" if self.literal("`") else '"' if self.literal('"') else ""
        if not mark:
            return None
        close = self.text.find(mark, self.at)
        if close < 0:
            self.at = len(self.text)
            self.problem("string", "Unterminated string literal")
            self.at = start
            return None
        self.at = close
        self.expect(f"!{quote(mark)}")
        self.at = close + 1
        inside = self.text[start + 1 : close]
        text = inside.replace("\r", "") if mark == "`" else _unescaped(inside)
        if text is None:
            self.problem("string", "invalid syntax", start)
            return ""
        return text


def _in_pointer(char: str) -> bool:
    return char in "-_.~:|" or unicodedata.category(char)[0] in "LN"


_ESCAPE = re.compile(
    r"""\\(?:([abfnrtv\\"])|x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))"""
)
_CONTROLS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _unescaped(text: str) -> str | None:
    """Return the unescaped text of a double-quoted literal; None if it is invalid."""
    if "\n" in text:
        return None
    rest = _ESCAPE.sub("", text)
    codes = [int(match[4] or match[5] or "0", 16) for match in _ESCAPE.finditer(text)]
    if "\\" in rest or any(code > 0x10FFFF or 0xD800 <= code < 0xE000 for code in codes):
        return None
    return _ESCAPE.sub(_resolved, text)


def _resolved(match: re.Match[str]) -> str:
    if match[1]:
        return _CONTROLS.get(match[1], match[1])
    if match[3]:
        return chr(int(match[3], 8))
    return chr(int(match[2] or match[4] or match[5], 16))
