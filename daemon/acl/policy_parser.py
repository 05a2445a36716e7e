"""The syntax of policies: HCL version 1, or the equivalent JSON.

Policies use an older language than jobs: keys may be quoted, items need no separators, and there
are no expressions. Every item has one or more keys (`path "a" {` has two) and a value. In JSON,
nested objects replace multiple keys: `{"path": {"a": {` means the same as `path "a" {`.
"""

import json
import re
from collections.abc import Iterator
from typing import cast

import msgspec

from storage.errors import Malformed
from storage.records.numbers import parse_integer

MAX_TEXT = 512 * 1024  # characters; the largest policy seen in the wild is 60 KiB long
MAX_DEPTH = 20


class PolicySyntaxError(Malformed):
    """A text is neither HCL nor JSON."""


class PolicyItem(msgspec.Struct, frozen=True):
    """One or more keys with a value.

    `line` is the line of the equals sign, and `column` is the column at which the value starts.
    Both are 0 if the item has no equals sign.
    """

    keys: tuple[str, ...]
    value: "Value"
    line: int = 0
    column: int = 0


class PolicyObject(msgspec.Struct, frozen=True):
    """The contents of a pair of braces in a policy."""

    items: tuple[PolicyItem, ...]

    def blocks(self, kind: str) -> Iterator[tuple[str, "PolicyObject"]]:
        """Yield label and content of every labelled block of a kind."""
        for policy_item in self.items:
            if policy_item.keys[0] == kind:
                yield from _labelled(policy_item.keys[1:], policy_item.value)

    def plain_blocks(self, kind: str) -> Iterator["PolicyObject"]:
        """Yield the content of every unlabelled block of a kind."""
        for policy_item in self.items:
            if policy_item.keys[0] == kind:
                values = (
                    policy_item.value
                    if isinstance(policy_item.value, list)
                    else [policy_item.value]
                )
                yield from (value for value in values if isinstance(value, PolicyObject))

    def each(self, key: str) -> Iterator[PolicyItem]:
        """Yield all items of a key."""
        return (policy_item for policy_item in self.items if policy_item.keys == (key,))

    def find(self, key: str) -> PolicyItem | None:
        """Return the last item of a key."""
        return next(
            (policy_item for policy_item in reversed(self.items) if policy_item.keys == (key,)),
            None,
        )


Value = str | int | float | bool | None | list["Value"] | PolicyObject


def _labelled(labels: tuple[str, ...], value: Value) -> Iterator[tuple[str, PolicyObject]]:
    if isinstance(value, list):
        for part in value:
            yield from _labelled(labels, part)
    elif isinstance(value, PolicyObject) and labels:
        yield labels[0], value
    elif isinstance(value, PolicyObject):
        for policy_item in value.items:
            yield from _labelled(policy_item.keys, policy_item.value)


def parse_policy_text(text: str) -> PolicyObject:
    """Parse a text. Raises `Malformed` with position and reason."""
    if len(text) > MAX_TEXT:
        raise Malformed(f"the policy is longer than {MAX_TEXT} characters")
    if text.lstrip().startswith("{"):
        return _from_json(text)
    return _Reader(text).whole()


# ---- JSON ----------------------------------------------------------------------------------------


class _Pairs(tuple[tuple[str, object], ...]):
    """The keys of a JSON object with their values, in order."""

    __slots__ = ()


def _from_json(text: str) -> PolicyObject:
    try:
        msgspec.json.decode(text)  # msgspec rejects numbers and texts that `json` accepts
        # A key may occur twice, as a block may in HCL. A dictionary would keep only the last one
        # and lose a rule.
        value = _converted(json.loads(text, object_pairs_hook=_Pairs), MAX_DEPTH)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise PolicySyntaxError(f"the policy is not valid JSON: {error}") from None
    if not isinstance(value, PolicyObject):
        raise Malformed("the policy is not a JSON object")
    return value


def _converted(value: object, levels: int) -> Value:
    if not levels:
        raise Malformed(f"the policy is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, _Pairs):
        return PolicyObject(
            tuple(PolicyItem((key,), _converted(element, levels - 1)) for key, element in value)
        )
    if isinstance(value, list):
        return [_converted(element, levels - 1) for element in value]
    return cast("Value", value)  # JSON has no other structures


# ---- HCL -----------------------------------------------------------------------------------------

_SPACE = re.compile(r"(?:\s|#[^\n]*|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)*")
_WORD = re.compile(r"[^\W\d][\w.\-]*")
_NUMBER = re.compile(r"-?(?:0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_HEREDOC = re.compile(r"<<(-?)(\w+)[^\S\n]*\n")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[0-7]{3}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_SIGNS = frozenset('"[]{}()=,.+-<#/_')  # characters with which a token of the language can begin
_CONSTANT = re.compile(r"(?:true|false)\b")


class _Reader:
    """A parser of the text of one policy."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._line, self._counted = 1, 0  # the line of the position `_counted`

    def whole(self) -> PolicyObject:
        items = []
        while self._next():
            items.append(self._item())
        return PolicyObject(tuple(items))

    def _next(self) -> str:
        """Return the first character of the next token; empty at the end."""
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        return self._text[self._at : self._at + 1]

    def _item(self) -> PolicyItem:
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
        return PolicyItem(tuple(keys), self._value(), line, column)

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

    def _object(self) -> PolicyObject:
        items = []
        while (sign := self._next()) != "}":
            if not sign:
                raise self._error("object expected closing RBRACE got: EOF")
            items.append(self._item())
            self._comma()
        self._at += 1
        return PolicyObject(tuple(items))

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
                margin = min((_indent(line) for line in lines if line.strip()), default=0)
                cut = margin if indented else 0
                return "".join(f"{line[cut:]}\n" for line in lines)
            lines.append(line)
        raise self._error("heredoc not terminated")

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        if match := pattern.match(self._text, self._at):
            self._at = match.end()
        return match

    def _unexpected(self, expected: str) -> PolicySyntaxError:
        sign = self._text[self._at : self._at + 1]
        if not sign:
            return self._error(f"expected a {expected} got: EOF")
        if not sign.isalnum() and sign not in _SIGNS:
            return self._error("illegal char")
        return self._error(f"expected a {expected}, got {sign!r}")

    def _error(self, problem: str) -> PolicySyntaxError:
        """Return an error at this position.

        At the end of the text, the column is one higher, as in Vault.
        """
        before = self._text[: self._at]
        column = len(before) - before.rfind("\n") + (self._at >= len(self._text))
        return PolicySyntaxError(f"At {before.count(chr(10)) + 1}:{column}: {problem}")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _number(text: str) -> int | float:
    if text.lstrip("-").startswith("0x"):
        return int(text, 16)
    return float(text) if re.search(r"[.eE]", text) else parse_integer(text)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(escape: re.Match[str]) -> str:
    code = escape[1]
    if len(code) == 1:
        return _ESCAPES.get(code, code)
    number = int(code, 8) if code.isdigit() else int(code[1:], 16)
    return chr(number) if number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF else "\ufffd"
