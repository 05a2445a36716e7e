"""JSON syntax of the language: objects are bodies, and strings are templates.

A string in a JSON file is a template, so it can contain any expression. The syntax tree is the same
as for native syntax.
"""

import re

from daemon.jobspec.hcl.lexer import MAX_NESTING, MAX_TOKENS
from daemon.jobspec.hcl.number import read_number
from daemon.jobspec.hcl.parser import read_template
from daemon.jobspec.hcl.source import Diagnostic, HclError, SourceText, did_you_mean
from daemon.jobspec.hcl.strings import normal
from daemon.jobspec.hcl.tree import (
    Expression,
    Literal,
    ObjectExpr,
    PropertyName,
    TemplateExpr,
    TupleExpr,
)
from daemon.jobspec.hcl.values import Value

_MOST_COPIED = 2**28  # characters; copying them takes a fraction of a second
_BLANKS = re.compile(r"[ \t\r\n]*+")
_STRING = re.compile(r'"((?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+)"')
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?", re.ASCII)
_WORD = re.compile(r"\w++")
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}
_ESCAPE = re.compile(r"\\(u([dD][89abAB]..)\\u([dD][c-fC-F]..)|u(....)|.)")
_MEANINGS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def is_json(source: SourceText) -> bool:
    """Return whether a string is JSON: its first non-space character opens an object."""
    return source.text.lstrip(" \ufeff").startswith("{")


def read_json_body(source: SourceText) -> ObjectExpr:
    """Parse a text that consists of a JSON object. Raises `HclError`."""
    reader = _Reader(source)
    reader.blanks()
    body = reader.value(0)
    reader.blanks()
    if reader.at < len(source.text):
        raise reader.fault("Extraneous data after value", "Extra characters appear after the end.")
    if not isinstance(body, ObjectExpr):
        raise reader.fault("Root value must be object", "A JSON object is required here.")
    return body


class _Reader:
    def __init__(self, source: SourceText) -> None:
        self.source, self.text = source, source.text
        self.at = 1 if source.text.startswith("\ufeff") else 0
        self.values = 0
        self.copied = 0  # characters copied so far: each template is parsed with the text before it

    def fault(self, summary: str, detail: str, end: int | None = None) -> HclError:
        """Return the error at the current position."""
        start = min(self.at, len(self.text))
        stop = min(start + 1, len(self.text)) if end is None else end
        return HclError(
            [Diagnostic(summary=summary, detail=detail, source=self.source, start=start, end=stop)]
        )

    def blanks(self) -> None:
        """Skip spaces and newlines."""
        if match := _BLANKS.match(self.text, self.at):
            self.at = match.end()

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def value(self, depth: int) -> Expression:
        """Return the next value."""
        if depth > MAX_NESTING:
            raise self.fault("Nested too deep", f"Values can have at most {MAX_NESTING} levels.")
        self.values += 1
        if self.values > MAX_TOKENS:
            raise self.fault("Text too long", f"The text has more than {MAX_TOKENS} values.")
        char = self._peek()
        if char == "{":
            return self._object(depth)
        if char == "[":
            return self._array(depth)
        if char == '"':
            start = self.at
            return self._template(self._string(), start)
        return self._scalar()

    def _scalar(self) -> Expression:
        start = self.at
        if match := _NUMBER.match(self.text, start):
            self.at = match.end()
            try:
                sign, digits = (-1, match[0][1:]) if match[0].startswith("-") else (1, match[0])
                return Literal(start, self.at, sign * read_number(digits))
            except ValueError as error:
                self.at = start
                raise self.fault("Invalid JSON number", f"{error}.", match.end()) from error
        if match := _WORD.match(self.text, start):
            if match[0] in _WORDS:
                self.at = match.end()
                return Literal(start, self.at, _WORDS[match[0]])
            hint = did_you_mean(match[0], _WORDS)
            detail = f'"{match[0][:40]}" is not a valid JSON keyword.{hint}'
            raise self.fault("Invalid JSON keyword", detail, match.end())
        raise self.fault(
            "Missing JSON value",
            "A JSON value must start with a brace, a bracket, a number, a string, or a keyword.",
        )

    def _string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if match is None:
            raise self.fault(
                "Invalid JSON string",
                "A JSON string must end on the same line and contain only JSON escapes.",
            )
        self.at = match.end()
        return _ESCAPE.sub(_meaning, match[1]) if "\\" in match[1] else match[1]

    def _template(self, text: str, start: int) -> Expression:
        if "${" not in text and "%{" not in text:
            # Nomad points at the quote here, and after the quote in native syntax.
            parts = (Literal(start, self.at, normal(text)),) if text else ()
            return TemplateExpr(start, self.at, parts)
        # Inner positions are exact unless the text has escapes; then they are approximate.
        self.copied += start
        if self.copied > _MOST_COPIED:
            raise self.fault("Text too long", "The text has too many templates.")
        before = self.text[: start + 1]
        return read_template(SourceText(self.source.name, before + text), start + 1)

    def _object(self, depth: int) -> ObjectExpr:
        start = self.at
        items: list[tuple[Expression, Expression]] = []
        self._open()
        while self._peek() != "}":
            key_start = self.at
            if self._peek() != '"':
                raise self.fault("Missing property name", "A JSON property begins with a string.")
            name = self._string()
            key = self._key(name, key_start)
            self.blanks()
            if self._peek() != ":":
                raise self.fault(
                    "Missing property value colon", "A colon must follow the property name."
                )
            self._open()
            items.append((key, self.value(depth + 1)))
            self._separator("}")
        self.at += 1
        return ObjectExpr(start, self.at, tuple(items))

    def _key(self, name: str, start: int) -> Expression:
        """Return the key of an object; a key that is not a valid template is a literal."""
        try:
            return PropertyName(start, self.at, name, self._template(name, start))
        except HclError:
            return PropertyName(start, self.at, name, Literal(start, self.at, normal(name)))

    def _array(self, depth: int) -> TupleExpr:
        start = self.at
        items: list[Expression] = []
        self._open()
        while self._peek() != "]":
            items.append(self.value(depth + 1))
            self._separator("]")
        self.at += 1
        return TupleExpr(start, self.at, tuple(items))

    def _open(self) -> None:
        """Consume one character and the spaces after it."""
        self.at += 1
        self.blanks()

    def _separator(self, closing: str) -> None:
        self.blanks()
        char = self._peek()
        if char == closing:
            return
        if char != ",":
            noun = "object property" if closing == "}" else "array element"
            raise self.fault("Missing attribute separator", f"A comma must follow an {noun}.")
        self._open()
        if self._peek() == closing:
            raise self.fault(
                "Trailing comma", "JSON does not allow a comma after the last element."
            )


def _meaning(match: re.Match[str]) -> str:
    escape, high, low, single = match.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    if single:
        number = int(single, 16)
        return "\ufffd" if 0xD800 <= number <= 0xDFFF else chr(number)
    return _MEANINGS.get(escape, escape)
