"""The text of a policy, as a tree: HCL of version 1, or the same as JSON.

Policies are older than the language of jobs: keys may be quoted, items need nothing between
them, nothing is computed. Whatever was written, an item here has keys (`path "a" {` has two) and
a value; an object inside an object counts as a further key, so that JSON reads the same as HCL.
"""

import re
from collections.abc import Iterator

import msgspec

from storage.errors import Malformed
from storage.records.numbers import whole

MAX_TEXT = 512 * 1024  # characters; the largest policy seen in the wild has 60 KiB
MAX_DEPTH = 20


class Unreadable(Malformed):
    """A text is neither HCL nor JSON."""


class Item(msgspec.Struct, frozen=True):
    """A key, or several, with a value.

    `line` is that of its equals sign, 0 when it has none; `column` is where the value begins there.
    """

    keys: tuple[str, ...]
    value: "Value"
    line: int = 0
    column: int = 0


class Object(msgspec.Struct, frozen=True):
    """What stands in braces."""

    items: tuple[Item, ...]

    def blocks(self, kind: str) -> Iterator[tuple[str, "Object"]]:
        """Yield label and content of every block of a kind that has a label."""
        for item in self.items:
            if item.keys[0] == kind:
                yield from _labelled(item.keys[1:], item.value)

    def plain_blocks(self, kind: str) -> Iterator["Object"]:
        """Yield the content of every block of a kind that has no label."""
        for item in self.items:
            if item.keys[0] == kind:
                values = item.value if isinstance(item.value, list) else [item.value]
                yield from (value for value in values if isinstance(value, Object))

    def find(self, key: str) -> Item | None:
        """Return the last item of a key."""
        return next((item for item in reversed(self.items) if item.keys == (key,)), None)


Value = str | int | float | bool | None | list["Value"] | Object


def _labelled(labels: tuple[str, ...], value: Value) -> Iterator[tuple[str, Object]]:
    if isinstance(value, list):
        for one in value:
            yield from _labelled(labels, one)
    elif isinstance(value, Object) and labels:
        yield labels[0], value
    elif isinstance(value, Object):
        for item in value.items:
            yield from _labelled(item.keys, item.value)


def read(text: str) -> Object:
    """Return the tree of a text. Raises `Malformed`, which says where and what."""
    if len(text) > MAX_TEXT:
        raise Malformed(f"the policy is longer than {MAX_TEXT} characters")
    if text.lstrip().startswith("{"):
        return _from_json(text)
    return _Reader(text).whole()


# ---- JSON ----------------------------------------------------------------------------------------


def _from_json(text: str) -> Object:
    try:
        value = _converted(msgspec.json.decode(text), MAX_DEPTH)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(f"the policy is not valid JSON: {error}") from None
    if not isinstance(value, Object):
        raise Malformed("the policy is not a JSON object")
    return value


def _converted(value: object, levels: int) -> Value:
    if not levels:
        raise Malformed(f"the policy is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return Object(
            tuple(Item((key,), _converted(one, levels - 1)) for key, one in value.items())
        )
    if isinstance(value, list):
        return [_converted(one, levels - 1) for one in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise Malformed(f"the policy holds {value!r}")


# ---- HCL -----------------------------------------------------------------------------------------

_SPACE = re.compile(r"(?:\s|#[^\n]*|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)*")
_WORD = re.compile(r"[^\W\d][\w.\-]*")
_NUMBER = re.compile(r"-?(?:0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_HEREDOC = re.compile(r"<<(-?)(\w+)[^\S\n]*\n")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[0-7]{3}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_SIGNS = frozenset('"[]{}()=,.+-<#/_')  # with which something of the language can begin
_CONSTANT = re.compile(r"(?:true|false)\b")


class _Reader:
    """Reads a text from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._line, self._counted = 1, 0  # which line `_counted` is in

    def whole(self) -> Object:
        items = []
        while self._next():
            items.append(self._item())
        return Object(tuple(items))

    def _next(self) -> str:
        """Return the character at which the next thing begins; at the end, nothing."""
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        return self._text[self._at : self._at + 1]

    def _item(self) -> Item:
        line = column = 0
        keys = [self._key()]
        while (sign := self._next()) not in ("=", "{"):
            if not sign:
                raise self._error("expected start of object ('{') or assignment ('=')")
            keys.append(self._key())
        if sign == "=":
            line = self._present_line()
            self._at += 1
            self._next()
            column = self._at - self._text.rfind("\n", 0, self._at)
        return Item(tuple(keys), self._value(), line, column)

    def _present_line(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _key(self) -> str:
        if word := self._take(_WORD):
            return word[0]
        if quoted := self._take(_STRING):
            return _unescaped(quoted[1])
        raise self._unexpected("key")

    def _value(self) -> Value:
        sign = self._next()
        if sign in ("{", "["):
            return self._nested(sign)
        if quoted := self._take(_STRING):
            return _unescaped(quoted[1])
        if number := self._take(_NUMBER):
            return _number(number[0])
        if begin := self._take(_HEREDOC):
            return self._heredoc(begin)
        if constant := self._take(_CONSTANT):
            return constant[0] == "true"
        raise self._unexpected("value")

    def _nested(self, sign: str) -> Value:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Malformed(f"the policy is nested more than {MAX_DEPTH} levels deep")
        self._at += 1
        value = self._object() if sign == "{" else self._list()
        self._depth -= 1
        return value

    def _object(self) -> Object:
        items = []
        while (sign := self._next()) != "}":
            if not sign:
                raise self._error("object expected closing RBRACE got: EOF")
            items.append(self._item())
            self._comma()
        self._at += 1
        return Object(tuple(items))

    def _list(self) -> list[Value]:
        values = []
        while (sign := self._next()) != "]":
            if not sign:
                raise self._error("error parsing list, expected comma or list end, got: EOF")
            values.append(self._value())
            if not self._comma() and self._next() not in ("]", ""):
                raise self._error("error parsing list, expected comma or list end")
        self._at += 1
        return values

    def _comma(self) -> bool:
        if self._next() != ",":
            return False
        self._at += 1
        return True

    def _heredoc(self, begin: re.Match[str]) -> str:
        indented, mark = begin.groups()
        lines: list[str] = []
        while self._at < len(self._text):
            end = self._text.find("\n", self._at)
            end = len(self._text) if end < 0 else end
            line = self._text[self._at : end]
            self._at = end + 1
            if line.strip() == mark:
                margin = min((_indent(one) for one in lines if one.strip()), default=0)
                cut = margin if indented else 0
                return "".join(f"{one[cut:]}\n" for one in lines)
            lines.append(line)
        raise self._error("heredoc not terminated")

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        if match := pattern.match(self._text, self._at):
            self._at = match.end()
        return match

    def _unexpected(self, wanted: str) -> Unreadable:
        sign = self._text[self._at : self._at + 1]
        if not sign:
            return self._error(f"expected a {wanted} got: EOF")
        if not sign.isalnum() and sign not in _SIGNS:
            return self._error("illegal char")
        return self._error(f"expected a {wanted}, got {sign!r}")

    def _error(self, what: str) -> Unreadable:
        """Return the error of this place; at the end the peer counts a column further."""
        before = self._text[: self._at]
        column = len(before) - before.rfind("\n") + (self._at >= len(self._text))
        return Unreadable(f"At {before.count(chr(10)) + 1}:{column}: {what}")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _number(text: str) -> int | float:
    if text.lstrip("-").startswith("0x"):
        return int(text, 16)
    return float(text) if re.search(r"[.eE]", text) else whole(text)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(escape: re.Match[str]) -> str:
    code = escape[1]
    if len(code) == 1:
        return _ESCAPES.get(code, code)
    number = int(code, 8) if code.isdigit() else int(code[1:], 16)
    return chr(number) if number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF else "\ufffd"
