"""Encoding and decoding functions: base64, JSON, CSV and URLs. YAML is in `yaml_codec.py`."""

import base64
import binascii
import csv
import json
import re
from urllib.parse import quote_plus

from daemon.jobspec.hcl.functions.registry import bounded, bounded_parts, function, text
from daemon.jobspec.hcl.number import Number, number_text, read_number
from daemon.jobspec.hcl.scope import MAX_DEPTH, FunctionFault, HclFunction, Parameter
from daemon.jobspec.hcl.strings import normal, replace_surrogates
from daemon.jobspec.hcl.values import ANY, Value, attributes, elements

_PIECE = 64 * 1024  # characters
_CSV_SEPARATORS = ("\n", "\r", ",")
_ESCAPED = re.compile("[<>&\u2028\u2029\x7f]")


def _base64encode(value: str) -> Value:
    return base64.b64encode(value.encode()).decode()


def _base64decode(value: str) -> Value:
    try:
        raw = base64.b64decode(value.replace("\r", "").replace("\n", ""), validate=True)
    except (binascii.Error, ValueError) as error:
        raise FunctionFault(f"failed to decode base64 data '{value[:100]}'") from error
    try:
        return normal(raw.decode())
    except UnicodeDecodeError as error:
        raise FunctionFault(
            "the result of decoding the provided string is not valid UTF-8"
        ) from error


# --- JSON ---

# Characters; decoding a document of this length takes up to 10 ms in one call.
MAX_DOCUMENT = 1_000_000


def json_text(value: Value) -> str:
    """Return a value as JSON, with sorted names, exact numbers, and HTML characters escaped."""
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts)


def _write(value: Value, parts: list[str]) -> None:
    items, named = elements(value), attributes(value)
    if items is not None:
        for index, element in enumerate(items):
            parts.append("," if index else "[")
            _write(element, parts)
        parts.append("]" if items else "[]")
    elif named is not None:
        for index, key in enumerate(sorted(named)):
            parts.append(f"{',' if index else '{'}{quoted(key)}:")
            _write(named[key], parts)
        parts.append("}" if named else "{}")
    else:
        parts.append(scalar_text(value))


def scalar_text(value: Value) -> str:
    """Return a text, number, Boolean or null as JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return quoted(value)
        case _:
            return number_text(value) if isinstance(value, Number) else "null"


def quoted(value: str) -> str:
    """Encode a string as JSON."""
    written = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", written)


def _jsondecode(value: str) -> Value:
    if len(value) > MAX_DOCUMENT:
        raise FunctionFault(f"the document has more than {MAX_DOCUMENT} characters")
    try:
        document = json.loads(
            value, parse_float=read_number, parse_int=read_number, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        raise FunctionFault(_complaint(error)) from error
    except RecursionError as error:
        raise FunctionFault("the document is nested too deep") from error
    except ValueError as error:
        raise FunctionFault(str(error)) from error
    return from_document(document, MAX_DEPTH)


def _no_constant(name: str) -> Number:
    raise ValueError(f"invalid character '{name[0]}'")


def _complaint(error: json.JSONDecodeError) -> str:
    if error.msg == "Extra data":
        return "extraneous data after JSON object"
    offset = error.pos
    while offset < len(error.doc) and error.doc[offset] in " \t\r\n{[,":
        offset += 1  # skip the text before the invalid character
    if offset >= len(error.doc):
        return "unexpected end of JSON input"
    return f"invalid character '{error.doc[offset]}'"


def from_document(value: object, depth: int) -> Value:
    """Return the value of a JSON or YAML document. Raises `FunctionFault`."""
    if not depth:
        raise FunctionFault("the document is nested too deep")
    match value:
        case dict():
            return {
                normal(replace_surrogates(str(key))): from_document(member, depth - 1)
                for key, member in value.items()
            }
        case list():
            return tuple([from_document(element, depth - 1) for element in value])
        case str():
            return normal(replace_surrogates(value))
        case bool() | None:
            return value
        case _:
            return value if isinstance(value, Number) else str(value)


# --- CSV and URLs ---


def _csvdecode(value: str) -> Value:
    bounded_parts(sum(map(value.count, _CSV_SEPARATORS)))
    reader = csv.reader(value.splitlines(keepends=True), strict=True)
    try:
        rows = [(row, reader.line_num) for row in reader if row]
    except csv.Error as error:
        raise FunctionFault(f"CSV parse error on line {reader.line_num}: {error}") from error
    if not rows:
        raise FunctionFault("missing header line")
    (header, _), *rest = rows
    for index, name in enumerate(header):
        if name in header[:index]:
            raise FunctionFault(f'duplicate column name "{name}"')
    bounded(sum(map(len, header)) * len(rest))
    for row, line in rest:
        if len(row) != len(header):
            raise FunctionFault(f"CSV parse error on line {line}: wrong number of fields")
    return tuple([dict(zip(header, row, strict=True)) for row, _ in rest])


def _urlencode(value: str) -> Value:
    parts = range(0, len(value), _PIECE)  # one call would hold the GIL for long
    return "".join([quote_plus(value[start : start + _PIECE], safe="~") for start in parts])


_ANYTHING = Parameter("val", ANY, may_be_null=True)

FUNCTIONS: dict[str, HclFunction] = {
    "base64encode": function(_base64encode, text("str")),
    "base64decode": function(_base64decode, text("str")),
    "jsonencode": function(json_text, _ANYTHING),
    "jsondecode": function(_jsondecode, text("str")),
    "csvdecode": function(_csvdecode, text("str")),
    "urlencode": function(_urlencode, text("str")),
}
