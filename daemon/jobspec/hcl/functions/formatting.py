"""`format` and `formatlist`, which replace the verbs in a text, such as `%d`, by values."""

import re
from fractions import Fraction

import msgspec

from daemon.jobspec.hcl import graphemes
from daemon.jobspec.hcl.functions.encoding import json_text
from daemon.jobspec.hcl.functions.registry import (
    any_value,
    bounded,
    function,
    per_character,
    per_part,
    text,
    text_list,
)
from daemon.jobspec.hcl.number import Number, shortest_digits
from daemon.jobspec.hcl.scope import ArgumentFault, FunctionFault, HclFunction
from daemon.jobspec.hcl.values import (
    BOOL,
    NUMBER,
    STRING,
    ConversionError,
    Type,
    Value,
    convert,
    elements,
    is_number,
)
from storage.records.numbers import parse_integer

MAX_WIDTH = 1000  # characters of a field, and digits after the decimal point

_VERB = re.compile(
    r"%(?P<flags>[-+# 0]*)(?P<width>\d*)(?:\.(?P<precision>\d*))?(?:\[(?P<index>\d+)\])?(?P<mode>.?)",
    re.DOTALL | re.ASCII,
)
_INTEGERS = {"d": "d", "b": "b", "o": "o", "x": "x", "X": "X"}


class _Verb(msgspec.Struct, frozen=True):
    text: str
    at: int
    mode: str
    flags: str
    width: int
    precision: int | None

    def unsuitable(self, why: object) -> FunctionFault:
        return FunctionFault(f'unsupported value for "{self.text}" at {self.at}: {why}')


def _format(form: str, *values: Value) -> str:
    """Return the text `form`, in which each verb is replaced by a value."""
    pieces, position, following, highest = [], 0, 0, 0
    while (offset := form.find("%", position)) >= 0:
        pieces.append(form[position:offset])
        if form.startswith("%%", offset):
            pieces.append("%")
            position = offset + 2
            continue
        match = _VERB.match(form, offset)
        if match is None:
            raise FunctionFault(f"unrecognized format at offset {offset}")
        verb = _read_verb(match, len(form[:offset].encode()))
        index = parse_integer(match["index"]) if match["index"] else following + 1
        if not 1 <= index <= len(values):
            raise FunctionFault(
                f'not enough arguments for "{verb.text}" at {verb.at}: need index {index} but '
                f"have {len(values)} total"
            )
        pieces.append(_field(verb, values[index - 1]))
        position, following = match.end(), index
        highest = max(highest, index)
        bounded(sum(map(len, pieces)) if len(pieces) % 100 == 0 else 0)
    if highest < len(values):
        used = f"only {highest} used by format string" if highest else "no verbs in format string"
        raise FunctionFault(f"too many arguments; {used}")
    pieces.append(form[position:])
    bounded(sum(map(len, pieces)))
    return "".join(pieces)


def _read_verb(match: re.Match[str], verb_offset: int) -> _Verb:
    mode = match["mode"]
    if not mode:
        raise FunctionFault(f"unterminated format verb at offset {verb_offset}")
    if not mode.isalpha():
        offset = verb_offset + len(match[0].encode()) - len(mode.encode())
        raise FunctionFault(f"unrecognized format character '{mode}' at offset {offset}")
    if mode not in _FIELDS:
        raise FunctionFault(
            f"unsupported format verb '{mode}' in \"{match[0]}\" at offset {verb_offset}"
        )
    width = int(match["width"][:5] or 0)
    precision = None if match["precision"] is None else int(match["precision"][:5] or 0)
    if max(width, precision or 0) > MAX_WIDTH:
        raise FunctionFault(f"the width of a field is at most {MAX_WIDTH}")
    return _Verb(match[0], verb_offset, mode, match["flags"], width, precision)


def _field(verb: _Verb, value: Value) -> str:
    return _FIELDS[verb.mode](verb, value)


def _converted(verb: _Verb, value: Value, type_: Type) -> Value:
    if value is None:
        raise verb.unsuitable("null value cannot be formatted")
    try:
        return convert(value, type_)
    except ConversionError as error:
        raise verb.unsuitable(error) from error


def _number(verb: _Verb, value: Value) -> Number:
    number = _converted(verb, value, NUMBER)
    return number if is_number(number) else 0


# --- text ---


def _padded(verb: _Verb, body: str) -> str:
    missing = verb.width - graphemes.count(body)
    if missing <= 0:
        return body
    return body + " " * missing if "-" in verb.flags else " " * missing + body


def _as_text(verb: _Verb, value: Value) -> str:
    body = str(_converted(verb, value, STRING))
    if verb.precision is not None:
        body = "".join(list(graphemes.split(body))[: verb.precision])
    return _padded(verb, json_text(body) if verb.mode == "q" else body)


def _as_it_is(verb: _Verb, value: Value) -> str:
    if "#" not in verb.flags and isinstance(value, str):
        return _padded(verb, value)
    if "#" not in verb.flags and is_number(value):
        return _padded(verb, _sign(value) + _general(_size(value), None, "e"))
    return _padded(verb, json_text(value))


def _as_truth(verb: _Verb, value: Value) -> str:
    return _padded(verb, "true" if _converted(verb, value, BOOL) else "false")


# --- numbers ---


def _size(value: Number) -> Number:
    return -value if value < 0 else value


def _sign(value: Number) -> str:
    return "-" if value < 0 else ""


def _as_integer(verb: _Verb, value: Value) -> str:
    number = _number(verb, value)
    if not isinstance(number, int):
        raise verb.unsuitable("an integer is required")
    body = f"{abs(number):{_INTEGERS[verb.mode]}}"
    if "#" in verb.flags:
        body = {"o": "0", "x": "0x", "X": "0X", "b": "0b"}.get(verb.mode, "") + body
    return _signed(verb, number, body)


def _as_decimal(verb: _Verb, value: Value) -> str:
    number = _number(verb, value)
    size = _size(number)
    if verb.mode == "f":
        body = _fixed(Fraction(size), 6 if verb.precision is None else verb.precision)
    elif verb.mode == "e":
        body = _scientific(Fraction(size), 6 if verb.precision is None else verb.precision)
    else:
        body = _general(size, verb.precision, "E" if verb.mode == "G" else "e")
    return _signed(verb, number, body)


def _signed(verb: _Verb, number: Number, body: str) -> str:
    sign = _sign(number) or ("+" if "+" in verb.flags else " " if " " in verb.flags else "")
    if "0" in verb.flags and "-" not in verb.flags:
        return sign + body.rjust(verb.width - len(sign), "0")
    return _padded(verb, sign + body)


def _fixed(size: Fraction, decimals: int) -> str:
    digits = str(round(size * 10**decimals)).rjust(decimals + 1, "0")
    return f"{digits[:-decimals]}.{digits[-decimals:]}" if decimals else digits


def _scientific(size: Fraction, decimals: int, letter: str = "e") -> str:
    if not size:
        return _with_exponent("0" * (decimals + 1), 0, letter)
    _, point = shortest_digits(size)
    exponent = point - 1
    digits = str(round(size / Fraction(10) ** exponent * 10**decimals))
    if len(digits) > decimals + 1:  # rounded up to the next power of ten
        digits, exponent = digits[:-1], exponent + 1
    return _with_exponent(digits, exponent, letter)


def _with_exponent(digits: str, exponent: int, letter: str) -> str:
    body = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
    return f"{body}{letter}{'-' if exponent < 0 else '+'}{abs(exponent):02}"


def _general(size: Number, precision: int | None, letter: str) -> str:
    """Return a number with the necessary digits, in exponent form if that is shorter.

    `letter` is the `e` or `E` of the exponent.
    """
    if not size:
        return "0"
    digits, point = shortest_digits(Fraction(size))
    limit = 6  # as in Nomad: exponent form starts at one million
    if precision is not None:
        digits_wanted = max(precision, 1)
        rounded = _scientific(Fraction(size), digits_wanted - 1)
        mantissa, _, exponent = rounded.partition("e")
        digits, point = mantissa.replace(".", "").rstrip("0") or "0", int(exponent) + 1
        limit = len(digits) if digits_wanted > len(digits) >= point else digits_wanted
    if not -4 <= point - 1 < limit:
        return _with_exponent(digits, point - 1, letter)
    if point <= 0:
        return f"0.{'0' * -point}{digits}"
    if point >= len(digits):
        return digits + "0" * (point - len(digits))
    return f"{digits[:point]}.{digits[point:]}"


_FIELDS = {
    "v": _as_it_is,
    "s": _as_text,
    "q": _as_text,
    "t": _as_truth,
    **dict.fromkeys(_INTEGERS, _as_integer),
    **dict.fromkeys("efgG", _as_decimal),
}


def _formatlist(form: str, *values: Value) -> Value:
    """Return one text for each position in the lists. Other values are the same in all texts."""
    lists = [elements(value) for value in values]
    length, first = None, 0
    for index, items in enumerate(lists):
        if items is None:
            continue
        if length is None:
            length, first = len(items), index
        elif len(items) != length:
            raise ArgumentFault(
                index + 1,
                f"argument {index + 1} has length {len(items)}, which is inconsistent with argument "
                f"{first + 1} of length {length}",
            )
    texts = []
    for index in range(1 if length is None else length):
        row = [
            value if items is None else items[index]
            for value, items in zip(values, lists, strict=True)
        ]
        try:
            texts.append(_format(form, *row))
        except FunctionFault as error:
            raise FunctionFault(f"error on format iteration {index}: {error}") from error
        bounded(len(texts) * len(texts[-1]))
    return text_list(texts)


FUNCTIONS: dict[str, HclFunction] = {
    "format": function(
        _format, text("format"), rest=any_value("args", may_be_null=True), cost=per_character
    ),
    "formatlist": function(
        _formatlist, text("format"), rest=any_value("args", may_be_null=True), cost=per_part
    ),
}
