# ruff: noqa: ANN401  # JSON documents hold anything
"""Decode long or hostile JSON in steps, so that other threads can run in between.

One call of the decoder holds the GIL until it has read all of its text. For 16 MB, this takes 7 ms
if the content is plain text, but 80 ms for escapes and 2 s for some numbers. `is_cheap` estimates
this time. `decode_in_steps` reads any body in pieces of 64 KB, with the same result.

The function `decode_in_steps` itself only looks for strings, brackets and commas. The complete
elements of each open container form a run, and the decoder gets each run as a separate container.
So the decoder reads all of the text, and finds all other syntax errors.
"""

import re
from typing import Any, NoReturn, TypeVar

import msgspec

from storage.errors import Malformed

T = TypeVar("T")

PIECE = 64 * 1024  # bytes of one call of the decoder: at most 1 ms
MAX_DEPTH = 500  # of open containers; the decoder has a similar limit
# The maximum cost of a cheap body, in bytes of plain text. Decoding these takes at most 10 ms.
_MOST_COST = 20_000_000
_ESCAPE, _SPACE, _VALUE = 24, 4, 500  # bytes of plain text that cost as much as one of these
_NOT_ASCII = 8  # bytes of plain text that cost as much as a byte of other text
# Numbers with an exponent of three digits, or 100 digits: the decoder calculates some of them with
# big integers, in 10 µs each. For the search, each digit is replaced by a zero, and signs of
# exponents are removed.
_SLOW_NUMBERS = (b"0e000", b"0" * 100)
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
MOST_SLOW_NUMBERS = 200
_FEW = 4 * MOST_SLOW_NUMBERS  # bytes that cannot contain more slow numbers
# The maximum length in bytes of a string with escape sequences or non-ASCII characters. Joining the
# pieces of a longer string would take more than 10 ms. A job file of 4 MB (`job_max_kb`) fits, even
# if a third are escape sequences.
MAX_TEXT = 6 * 1024 * 1024

_MARK = re.compile(rb'["\[\]{},]')
_HEX = rb"[0-9a-fA-F]"
_PART = re.compile(  # a part of a text: whole characters, except at the end
    rb'(?:[^"\\]++|\\(?:u' + _HEX + rb"{4}|[^u]))*+"
)
_LOW_SURROGATE = re.compile(rb"\\u[dD][c-fC-F]" + _HEX + rb"{2}")
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # the end is optional, for linear time
_QUOTE, _COMMA, _OPENS_OBJECT = b'"'[0], b","[0], b"{"[0]
_OPENING, _CLOSING = b"{[", {b"{"[0]: b"}"[0], b"["[0]: b"]"[0]}
_WHITE = b" \t\n\r"  # `strip` alone would also remove other characters
_CONTINUES, _CONTINUATION = 0xC0, 0x80  # bits of a UTF-8 byte that is not the first


def _cost_of_text(text: bytes) -> str:
    """Return the reason why a long string cannot be decoded in one step."""
    if text.isascii() and b"\\" not in text:
        return ", and too many spaces, commas, brackets or digits to be decoded in one step"
    return " that contains escape sequences or non-ASCII characters"


def is_cheap(body: bytes) -> bool:
    """Return whether a single call of the decoder takes at most about 10 ms for a body."""
    if len(body) <= _FEW:
        return True
    cost = len(body) if body.isascii() else _NOT_ASCII * len(body)
    slow = 0
    for start in range(0, len(body), PIECE):
        part = body[start : start + PIECE]
        cost += _ESCAPE * part.count(b"\\")
        cost += _VALUE * sum(part.count(sign) for sign in (b",", b"{", b"["))
        cost += _SPACE * sum(part.count(sign) for sign in (b" ", b"\n", b"\t", b"\r"))
        slow += _slow_numbers(part)
        if cost > _MOST_COST or slow > MOST_SLOW_NUMBERS:
            return False
    return True


def decode(body: bytes) -> object:
    """Return the value of a body, decoded in steps if it is not cheap.

    Raises `msgspec.DecodeError`, `UnicodeDecodeError`, `RecursionError`, or `Malformed` beyond a
    limit.
    """
    return msgspec.json.decode(body) if is_cheap(body) else decode_in_steps(body)


def decode_as(body: bytes, kind: type[T]) -> T:
    """Return the value of a body, converted to the type `kind`. Raises the errors of `decode`."""
    if is_cheap(body):
        return msgspec.json.decode(body, type=kind)
    return msgspec.convert(decode_in_steps(body), kind)


def _slow_numbers(part: bytes) -> int:
    alike = part.translate(_ALIKE, b"+-")
    return sum(map(alike.count, _SLOW_NUMBERS))


def decode_in_steps(body: bytes) -> object:
    """Return the value of a body. Raises the errors of `decode`."""
    return _Steps(body).value()


class _Container:
    """An open container: its decoded elements, and the part that was not decoded yet."""

    __slots__ = ("cut", "elements", "is_after_element", "is_object", "key", "opened", "start")

    def __init__(self, opened: int, *, is_object: bool) -> None:
        self.opened, self.is_object = opened, is_object
        self.start = self.cut = opened + 1  # the part to decode, up to its last comma
        self.elements: Any = None
        self.key: str | None = None  # of the element that is read separately
        self.is_after_element = False  # an element was just read separately

    def add(self, value: Any, end: int) -> None:
        """Add an element that was not part of a run: a closed container, or a long string."""
        if self.is_object:
            self.elements[self.key] = value
        else:
            self.elements.append(value)
        self.start = self.cut = end
        self.key, self.is_after_element = None, True


class _Steps:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._open: list[_Container] = []
        self._decoded = 0  # all before this offset is decoded, or waits in a container
        self._slow = 0

    def value(self) -> object:
        """Return the value of the whole body."""
        body = self._body
        value: object
        first = self._mark(0)
        if first is None or body[: first.start()].strip(_WHITE):
            return msgspec.json.decode(body)  # a number or a word, or invalid
        offset = first.start()
        if body[offset] == _QUOTE:
            value, offset = self._text(offset, self._end_of_part(offset))
        elif body[offset] in _OPENING:
            value, offset = self._container(offset)
        else:
            self._fail(offset)
        while offset < len(body):
            if body[offset : offset + PIECE].strip(_WHITE):
                raise msgspec.DecodeError(f"JSON is malformed: trailing characters (byte {offset})")
            offset += PIECE
        return value

    def _container(self, offset: int) -> tuple[object, int]:
        """Return the container that begins at an offset, and the offset after it."""
        body = self._body
        while True:
            sign = body[offset]
            if sign == _QUOTE:
                offset = self._string(offset)
            elif sign == _COMMA:
                self._comma(offset)
                offset += 1
            elif sign in _OPENING:
                if len(self._open) >= MAX_DEPTH:
                    raise RecursionError(f"it is nested more than {MAX_DEPTH} levels deep")
                self._open.append(_Container(offset, is_object=sign == _OPENS_OBJECT))
                offset += 1
            else:
                value = self._close(offset)
                offset += 1
                if not self._open:
                    return value, offset
            if offset - self._decoded > PIECE:
                self._decode(offset)
            match = self._mark(offset)
            if match is None:
                self._fail(offset)
            offset = match.start()

    def _mark(self, offset: int) -> re.Match[bytes] | None:
        """Return the next string, bracket or comma.

        Raises `Malformed` if the next `PIECE` bytes contain none of these.
        """
        match = _MARK.search(self._body, offset, offset + PIECE)
        if match is None and offset + PIECE < len(self._body):
            raise Malformed(
                f"the body has more than {PIECE} bytes without a quote, bracket or comma: send JSON "
                "with shorter numbers and less whitespace"
            )
        return match

    def _comma(self, offset: int) -> None:
        top = self._open[-1]
        top.cut = offset + 1
        if top.is_after_element:
            if self._body[top.start : offset].strip(_WHITE):
                self._fail(top.start)
            top.start, top.is_after_element = offset + 1, False

    def _close(self, offset: int) -> object:
        top, body = self._open.pop(), self._body
        if body[offset] != _CLOSING[body[top.opened]]:
            self._fail(offset)
        if top.elements is None and self._open:
            return None  # it becomes a part of a run of the surrounding container
        if top.is_after_element:
            if body[top.start : offset].strip(_WHITE):
                self._fail(top.start)
        elif top.elements and not body[top.start : offset].strip(_WHITE):
            self._fail(offset)  # a comma without an element
        else:
            self._read(top, offset)
        if self._open:
            self._open[-1].add(top.elements, offset + 1)
        self._decoded = offset + 1
        return top.elements

    def _decode(self, offset: int) -> None:
        """Decode the complete elements of all open containers."""
        last = len(self._open) - 1
        for index, container in enumerate(self._open):
            if container.key is not None:
                continue  # its next element is the next container, which is still open
            self._read_run(container)
            if index < last:
                self._read_key(container, self._open[index + 1].opened)
        self._decoded = offset

    def _read_run(self, container: _Container) -> None:
        if container.elements is None:
            container.elements = {} if container.is_object else []
        if container.cut > container.start:
            self._read(container, container.cut - 1)
            container.start = container.cut

    def _read(self, container: _Container, end: int) -> None:
        """Decode the elements before an offset."""
        run = self._body[container.start : end]
        if _slow_numbers(run):
            self._slow += _slow_numbers(_TEXT.sub(b'""', run))
            if self._slow > MOST_SLOW_NUMBERS:
                raise Malformed(
                    f"the body has more than {MOST_SLOW_NUMBERS} numbers with an exponent of three "
                    "digits, or with 100 digits"
                )
        text = b"{%b}" % run if container.is_object else b"[%b]" % run
        decoded = msgspec.json.decode(text)
        if not decoded and (container.elements or self._body[end : end + 1] == b","):
            self._fail(end)
        if container.elements is None:
            container.elements = decoded
        elif container.is_object:
            container.elements.update(decoded)
        else:
            container.elements.extend(decoded)

    def _read_key(self, container: _Container, end: int) -> None:
        """Read the key of a separately decoded element, from the text after the last comma."""
        before = self._body[container.start : end]
        if not container.is_object:
            if before.strip(_WHITE) or container.is_after_element:
                self._fail(container.start)
            container.key = ""
            return
        # A container ends any value before it, whereas digits would continue a number.
        decoded = msgspec.json.decode(b"{%b[]}" % before)
        if len(decoded) != 1 or container.is_after_element:
            self._fail(container.start)
        container.key = next(iter(decoded))

    def _string(self, offset: int) -> int:
        """Return the offset after a string. A long string is decoded and added to its container."""
        end = self._end_of_part(offset)
        if self._body[end : end + 1] == b'"':
            return end + 1
        self._decode(offset)
        top = self._open[-1]
        if top.is_object and not self._body[top.start : offset].strip(_WHITE):
            raise Malformed(f"the body has a name of more than {PIECE} bytes")
        self._read_key(top, offset)
        text, end = self._text(offset, end)
        top.add(text, end)
        self._decoded = end
        return end

    def _end_of_part(self, offset: int) -> int:
        match = _PART.match(self._body, offset + 1, offset + 1 + PIECE)
        assert match is not None  # noqa: S101  # it matches an empty string
        return match.end()

    def _text(self, offset: int, end: int) -> tuple[str, int]:
        """Return a decoded string, and the offset of its closing quote plus 1.

        `offset` is the offset of the opening quote, and `end` the end of the first part of the string.
        """
        body, parts, first = self._body, list[str](), offset
        offset += 1
        while True:
            if _LOW_SURROGATE.match(body, end):
                end += 6
            for _ in range(3):
                end += end < len(body) and body[end] & _CONTINUES == _CONTINUATION
            if end - first > MAX_TEXT:
                raise Malformed(
                    f"the body has a JSON string of more than {MAX_TEXT} bytes"
                    f"{_cost_of_text(body[first:end])}"
                )
            parts.append(msgspec.json.decode(b'"%b"' % body[offset:end]))
            if body[end : end + 1] == b'"':
                return "".join(parts), end + 1
            if end == offset:
                self._fail(offset)
            offset = end
            end = self._end_of_part(offset - 1)

    def _fail(self, offset: int) -> NoReturn:
        raise msgspec.DecodeError(f"JSON is malformed (byte {offset})")
