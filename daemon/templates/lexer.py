"""Lexer of templates (pkg.go.dev/text/template, "Text and spaces"). No I/O."""

import re
from bisect import bisect_left
from collections.abc import Generator, Iterator
from enum import StrEnum

import msgspec

from daemon.templates.errors import TemplateError
from daemon.text.go_format import quote

_SPACE = " \t\r\n"
_SPACES = frozenset(_SPACE)
_WORD = re.compile(
    r"""(?P<text>"(?:[^"\\\n]|\\.)*"|`[^`]*`)
      | (?P<char>'(?:[^'\\\n]|\\.)+')
      | (?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+
                   |(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9_]+)?)(?![\w.]))
      | (?P<field>\.[^\W\d]\w*)
      | (?P<variable>\$\w*)
      | (?P<name>[^\W\d]\w*)
      | (?P<sign>:=|[=|(),.])
    """,
    re.VERBOSE,
)


class TokenType(StrEnum):
    """The type of a token."""

    PLAIN = "plain"  # text outside of actions
    END = "end"  # part of an action
    TEXT = "text"
    CHAR = "char"
    NUMBER = "number"
    FIELD = "field"
    VARIABLE = "variable"
    NAME = "name"
    SIGN = "sign"


class TemplateToken(msgspec.Struct, frozen=True):
    """A token, its line, and whether a space precedes it."""

    kind: TokenType
    text: str
    line: int
    is_apart: bool = False


class _Source:
    """The text of a template, with the line of each offset."""

    def __init__(self, text: str, right: str) -> None:
        self.text, self.right = text, right
        self._breaks = [match.start() for match in re.finditer("\n", text)]

    def line(self, offset: int) -> int:
        return bisect_left(self._breaks, offset) + 1


def tokenize(text: str, left: str, right: str) -> Iterator[TemplateToken]:
    """Yield the tokens of a template with these delimiters. Raises `TemplateError`."""
    source, offset = _Source(text, right), 0
    trim = False  # the previous action trims the following space
    while (start := text.find(left, offset)) >= 0:
        inside = start + len(left)
        trims = text.startswith("-", inside) and text[inside + 1 : inside + 2] in _SPACES
        yield _plain(source, offset, start, before=trim, after=trims)
        inside += 2 if trims else 0
        if text.startswith("/*", inside):
            offset, trim = _comment(source, inside)
        else:
            offset, trim = yield from _action(source, inside)
    yield _plain(source, offset, len(text), before=trim, after=False)


def _plain(source: _Source, start: int, end: int, *, before: bool, after: bool) -> TemplateToken:
    plain = source.text[start:end]
    plain = plain.lstrip(_SPACE) if before else plain
    return TemplateToken(
        TokenType.PLAIN, plain.rstrip(_SPACE) if after else plain, source.line(start)
    )


def _comment(source: _Source, start: int) -> tuple[int, bool]:
    """Return the end of a comment, and whether it trims the following space."""
    end = source.text.find("*/", start)
    if end < 0:
        raise TemplateError(f"line {source.line(start)}: unclosed comment")
    closing = _closing(source, end + 2)
    if closing is None:
        raise TemplateError(f"line {source.line(start)}: comment ends before closing delimiter")
    return closing


def _closing(source: _Source, offset: int) -> tuple[int, bool] | None:
    """Return a pair: the end of the action, and whether its delimiter trims the following space.

    Return None if no delimiter at `offset` closes the action.
    """
    text, right = source.text, source.right
    if text.startswith(right, offset):
        return offset + len(right), False
    if text[offset : offset + 1] in _SPACES and text.startswith(f"-{right}", offset + 1):
        return offset + 2 + len(right), True
    return None


def _action(source: _Source, offset: int) -> Generator[TemplateToken, None, tuple[int, bool]]:
    """Yield the tokens of an action; return its end, and whether it trims the following space."""
    text, is_apart, began = source.text, False, source.line(offset)
    while (end := _closing(source, offset)) is None:
        if offset >= len(text):
            raise TemplateError(f"line {began}: unclosed action")
        if text[offset] in _SPACES:
            offset, is_apart = offset + 1, True
            continue
        match = _WORD.match(text, offset)
        line = source.line(offset)
        if match is None:
            raise TemplateError(f"line {line}: unexpected {quote(text[offset])} in an action")
        yield TemplateToken(TokenType(str(match.lastgroup)), match[0], line, is_apart)
        offset, is_apart = match.end(), False
    yield TemplateToken(TokenType.END, source.right, source.line(offset))
    return end
