# ruff: noqa: ANN401  # documents hold anything until they are checked here
"""Go's JSON conventions that msgspec does not have, and fields with two names.

Clients were written for a server in Go. Therefore names match in any case, `null` means absent,
unknown names are ignored, and text after the first value is ignored. The error texts are Go's,
because scripts match them. Some fields have a neutral name and a vendor name. They are read under
either name, and written under both.

Only this module uses dictionaries in place of records. A `Document` is a JSON object whose names
are spelled by `wire_name`, without nulls and with checked types.
"""

import json
import re
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from math import isfinite
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import inspect

from storage.errors import Malformed
from storage.records import durations, go_json, json_steps, numbers
from storage.records.job import Job, SubmittedJob

T = TypeVar("T", bound=msgspec.Struct)

Document = dict[str, Any]

# neutral name -> name used by the vendor's clients; no other fields have two names
ALIASES = {
    "SecretsToken": "VaultToken",
    "ServiceDiscoveryToken": "ConsulToken",
    "ServiceTokenID": "NomadTokenID",
    "SecretsNamespace": "VaultNamespace",
    "SecretsError": "VaultError",
    "SecretsConfig": "Vault",
}

MAX_DEPTH = 100  # of nested JSON: a job has about ten levels
# Per body: parsing this number of values blocks the interpreter for up to 25 ms. A job of 2,000
# groups has 60,000.
MAX_VALUES = 200_000
_FEW = 3 * MAX_VALUES  # bytes that cannot hold more values: `{},`
_QUOTES = 4  # quotes that cost as much as a value
_MOST_READ_SLOWLY = 1024 * 1024  # bytes, which take about 500 ms
_MOST_DIGITS = 308  # of a number: the maximum of floating point


class RecordShape:
    """Marks a `Document` field that is checked like a record but stays a dictionary."""

    def __init__(self, record: type[msgspec.Struct]) -> None:
        self.record = record


# Fields that only the server sets: clients send them back as they received them.
SERVERS_OWN = frozenset(
    {
        *("CreateIndex", "ModifyIndex", "JobModifyIndex", "CreateTime", "ModifyTime", "Hash"),
        "JobIndex",  # of a submission
        "SecretID",  # of a token update
    }
)
_MOST_UNKNOWN = 20  # fields named in a message
_LONGEST_NAME = 100  # characters of a name
_unknown: ContextVar[list[str] | None] = ContextVar("unknown", default=None)


def decode(record: type[T], body: bytes, unknown: list[str] | None = None) -> T:
    """Decode a request body as a record. Raises `Malformed` with Go's text.

    `unknown` receives the paths of nonempty fields that the record does not have.
    """
    token = _unknown.set(unknown)
    try:
        document = _read(record)(parse(body), "", "")
    finally:
        _unknown.reset(token)
    if document is _ABSENT:
        document = {}
    return msgspec.convert(document, record)


def _note_unknown(key: str, value: object, path: str) -> None:
    """Record an unknown field. Skip an empty value, because clients often send empty fields."""
    unknown = _unknown.get()
    if unknown is None or key in SERVERS_OWN or says_nothing(value):
        return
    name = f"{path}.{key}"[:_LONGEST_NAME] if path else key[:_LONGEST_NAME]
    if name not in unknown and len(unknown) < _MOST_UNKNOWN:
        unknown.append(name)


def says_nothing(value: object) -> bool:
    """Return whether a value is null, empty or zero, as clients send for unset fields."""
    waiting = [value]
    while waiting:  # iterative, for any depth
        current = waiting.pop()
        if isinstance(current, dict):
            waiting.extend(current.values())
        elif isinstance(current, list):
            waiting.extend(current)
        elif current:
            return False
    return True


_COUNTED_AT_ONCE = 1024 * 1024  # bytes: one count of 16 MiB would hold the interpreter for 12 ms


def parse(body: bytes) -> object:
    """Return the first JSON value of a body. Raises `Malformed` with Go's text."""
    if not body:
        raise Malformed("Request body is empty")
    if len(body) > _FEW and (excess := excess_of_values(body, MAX_VALUES)):
        raise Malformed(f"the body has more than {excess}: send fewer in one request")
    try:
        value = json_steps.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if len(body) > _MOST_READ_SLOWLY:
            raise Malformed(f"the body is not valid JSON: {error}") from error
        # The body is invalid or, rarely, a value followed by other text. The slow parser finds out
        # which.
        value = _first_value(body)
    if _too_deep(value, MAX_DEPTH):
        raise Malformed(f"the body is nested more than {MAX_DEPTH} levels deep")
    return value


def has_more_values(body: bytes, most: int) -> bool:
    """Return whether a JSON body has more than `most` values, or very many quotes."""
    return bool(excess_of_values(body, most))


def excess_of_values(body: bytes, most: int) -> str:
    """Return the limit that a JSON body exceeds, such as `1000 JSON values`, without decoding it.

    A body with very many quotes exceeds a limit too. The result is empty if there is no excess.
    """
    if not may_have_more_values(body, most):
        return ""
    offset, values, is_outside = 0, 0, True  # outside of strings
    for _ in range(_QUOTES * most):
        quote = body.find(b'"', offset)
        if is_outside:
            values += _separators(body, offset, len(body) if quote < 0 else quote)
        if quote < 0 or values >= most:
            return f"{most} JSON values" if values >= most else ""
        if is_outside or not _is_escaped(body, quote):
            is_outside = not is_outside
        offset = quote + 1
    return f"{_QUOTES * most} quotes"


def may_have_more_values(body: bytes, most: int) -> bool:
    """Return whether a JSON body may have more than `most` values.

    Separators in strings also count. The check takes 1 ms for a megabyte of any content, so it
    suits documents of other servers.
    """
    return _separators(body, 0, len(body)) >= most


def _separators(body: bytes, start: int, end: int) -> int:
    """Return the number of values in a part of a body, counted by commas and opening brackets.

    A member of an object counts once: its key and its value have no comma between them.
    """
    return sum(
        body.count(sign, first, min(first + _COUNTED_AT_ONCE, end))
        for first in range(start, end, _COUNTED_AT_ONCE)
        for sign in (b",", b"{", b"[")
    )


def _is_escaped(body: bytes, offset: int) -> bool:
    before = offset
    while before and body[before - 1] == 0x5C:  # a backslash
        before -= 1
    return (offset - before) % 2 == 1


def _first_value(body: bytes) -> object:
    end = go_json.end_of_first_value(body, MAX_DEPTH)
    try:
        text = body[:end].decode(errors="replace")
        value = json.loads(text, parse_int=_read_whole, parse_float=_read_float)
        return _replace_surrogates(value, "")
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from error


class _Beyond(str):
    """The text of a number that is out of range."""

    __slots__ = ()


def _read_whole(text: str) -> int | _Beyond:
    return int(text) if len(text) <= _MOST_DIGITS else _Beyond(text)


def _read_float(text: str) -> float | _Beyond:
    value = float(text)
    return value if isfinite(value) else _Beyond(text)


_SURROGATE = re.compile("[\ud800-\udfff]")  # the parser has combined the pairs


def _replace_surrogates(value: Any, path: str) -> object:
    """Return a value with U+FFFD instead of lone surrogates, as Go decodes them.

    Raises `Malformed` for a number that is out of range.
    """
    match value:
        case _Beyond():
            raise Malformed(
                f"{path or 'the body'}: the number {numbers.shorten(value)} is too large"
            )
        case str():
            return "".join(
                _SURROGATE.sub("\ufffd", value[start : start + json_steps.PIECE])
                for start in range(0, len(value), json_steps.PIECE)
            )
        case list():
            return [
                _replace_surrogates(element, f"{path}[{index}]")
                for index, element in enumerate(value)
            ]
        case dict():
            return {
                _replace_surrogates(key, path): _replace_surrogates(
                    member, f"{path}.{key}" if path else str(key)
                )
                for key, member in value.items()
            }
        case _:
            return value


def _too_deep(value: object, levels: int) -> bool:
    if isinstance(value, dict):
        return not levels or any(_too_deep(element, levels - 1) for element in value.values())
    if isinstance(value, list):
        return not levels or any(_too_deep(element, levels - 1) for element in value)
    return False


def encode(value: object) -> bytes:
    """Encode a record, or anything that contains records, as JSON."""
    return msgspec.json.encode(value)


# --- jobs with both names ---

# Fields of a job that are stored next to its document (`JobHead`).
HEAD_FIELDS = (
    "Status",
    "StatusDescription",
    "Stable",
    "Version",
    "VersionTag",
    "SubmitTime",
    "CreateIndex",
    "ModifyIndex",
    "JobModifyIndex",
)


def job_document(job: Job) -> str:
    """Return the definition of a job for storage: fields of `JobHead` are omitted.

    A field that has a neutral name and a vendor name is written under both names.
    """
    return encode(job_builtins(job)).decode()


def job_builtins(job: Job) -> Document:
    """Return the definition of a job for storage as a dictionary; see `job_document`."""
    document: Document = msgspec.to_builtins(job)
    for name in HEAD_FIELDS:
        del document[name]
    return spell_job_twice(document)


def spell_job_twice(document: Document) -> Document:
    """Add the vendor's names to the document of a job, in place; return it."""
    _spell_twice(document)
    for group in document["TaskGroups"] or ():
        for task in group["Tasks"] or ():
            _spell_twice(task)
    return document


def _spell_twice(document: Document) -> None:
    for name in document.keys() & ALIASES.keys():
        document[ALIASES[name]] = document[name]


# --- decoding by record types ---

_ABSENT: Any = object()  # the result of null
# value, name of the enclosing Go struct, path of Go field names -> checked value
_Check = Callable[[Any, str, str], Any]


@cache
def _read(record: type) -> _Check:
    """Return the function that checks and renames a JSON object for a record."""
    kind = inspect.type_info(record)
    assert isinstance(kind, inspect.StructType)  # noqa: S101  # true for every record
    return _object(kind)


def _object(kind: inspect.StructType) -> _Check:
    name = _go_struct(kind.cls)
    fields: dict[str, tuple[str, _Check]] = {}
    hints = get_type_hints(kind.cls, include_extras=True)
    for field in kind.fields:
        check = _field_check(hints[field.name], field.type)
        for spelling in (field.encode_name, ALIASES.get(field.encode_name)):
            if spelling:
                fields[spelling.lower()] = (field.encode_name, check)

    def check_object(value: Any, struct: str, path: str) -> Any:
        if value is None:
            return _ABSENT
        if not isinstance(value, dict):
            raise _mismatch(value, struct, path, f"api.{name}")
        document: Document = {}
        for key, member in value.items():
            definition = fields.get(key.lower())
            if definition is None:
                _note_unknown(key, member, path)
                continue
            field_name, check = definition
            checked = check(member, name, f"{path}.{field_name}" if path else field_name)
            if checked is not _ABSENT:
                document[field_name] = checked
        return document

    return check_object


def _go_struct(record: type) -> str:
    """Return Go's name of a record."""
    return _GO_STRUCTS.get(record.__name__, record.__name__)


_GO_STRUCTS = {
    "SubmittedJob": "Job",
    "SubmittedVariable": "VariableDecrypted",
    "SubmittedLock": "VariableLock",
    "Update": "UpdateStrategy",
    "Migrate": "MigrateStrategy",
    "Periodic": "PeriodicConfig",
    "Parameterized": "ParameterizedJobConfig",
    "Network": "NetworkResource",
    "DispatchPayload": "DispatchPayloadConfig",
    "Lifecycle": "TaskLifecycle",
    "Artifact": "TaskArtifact",
    "Check": "ServiceCheck",
    "SecretsConfig": "Vault",
    "Identity": "WorkloadIdentity",
    "Scaling": "ScalingPolicy",
    "SchedulerConfig": "SchedulerConfiguration",
    "Device": "RequestedDevice",
    "Volume": "VolumeRequest",
    "Disconnect": "DisconnectStrategy",
    "JobUI": "JobUIConfig",
    "Link": "JobUILink",
    "Submission": "JobSubmission",
    "VersionTag": "JobVersionTag",
}
# Go lists contain these by value, all others by pointer.
_BY_VALUE = frozenset({"Port", "Check", "Secret"})


def _field_check(hint: object, kind: inspect.Type) -> _Check:
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, RecordShape):
            return _read(mark.record)
    for argument in getattr(hint, "__args__", ()):  # Annotated[...] | None
        for mark in getattr(argument, "__metadata__", ()):
            if isinstance(mark, RecordShape):
                return _read(mark.record)
    return _checked(kind)


def _checked(kind: inspect.Type, extra: dict[str, str] | None = None) -> _Check:
    match kind:
        case inspect.Metadata():
            return _checked(kind.type, kind.extra)
        case inspect.UnionType():
            return _checked(
                next(type_ for type_ in kind.types if not isinstance(type_, inspect.NoneType))
            )
        case inspect.StructType():  # fully known: inspecting again would take much longer
            return _object(kind)
        case inspect.StrType():
            return _scalar(str, (extra or {}).get("go", "string"))
        case inspect.BoolType():
            return _scalar(bool, "bool")
        case inspect.IntType():
            number = _integer((extra or {}).get("go", "int"))
            return _span(number) if extra and "text" in extra else number
        case inspect.ListType():
            return _list(kind)
        case inspect.DictType():
            return _map(kind)
        case _:
            return lambda value, struct, path: _ABSENT if value is None else value


def _scalar(expected: type, go: str) -> _Check:
    def check(value: Any, struct: str, path: str) -> Any:
        if value is None:
            return _ABSENT
        if type(value) is not expected:
            raise _mismatch(value, struct, path, go)
        return value

    return check


_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "uint8": (0, 2**8 - 1),
    "uint64": (0, 2**64 - 1),
}
_INT64 = (-(2**63), 2**63 - 1)


def _integer(go: str) -> _Check:
    least, most = _RANGES.get(go, _INT64)

    def check(value: Any, struct: str, path: str) -> Any:
        if value is None:
            return _ABSENT
        if type(value) is int and least <= value <= most:
            return value
        if type(value) in (int, float):
            raise _mismatch(value, struct, path, go, f"number {go_json.number(value)}")
        raise _mismatch(value, struct, path, go)

    return check


def _span(number: _Check) -> _Check:
    def check(value: Any, struct: str, path: str) -> Any:
        if not isinstance(value, str):
            return number(value, struct, path)
        try:
            return durations.nanoseconds(value) if value else _ABSENT
        except ValueError as error:
            raise Malformed(f"{path} cannot be read: {error}") from error

    return check


def _list(kind: inspect.ListType) -> _Check:
    item_check = _checked(kind.item_type)
    go = "[]" + _go_type(kind.item_type)

    def check(value: Any, struct: str, path: str) -> Any:
        if value is None:
            return _ABSENT
        if not isinstance(value, list):
            raise _mismatch(value, struct, path, go)
        items = [item_check(element, struct, path) for element in value]
        if _ABSENT not in items:
            return items
        if isinstance(kind.item_type, inspect.StructType):
            # Go has a nil pointer there, at which Nomad's handlers crash.
            element_path = f"{path}[{items.index(_ABSENT)}]"
            raise Malformed(
                f"{element_path} is null: write a block there, or leave the element out"
            )
        zero = _zero_value(kind.item_type)
        return [zero if element is _ABSENT else element for element in items]

    return check


def _map(kind: inspect.DictType) -> _Check:
    item_check = _checked(kind.value_type)
    go = "map[string]" + _go_type(kind.value_type)

    def check(value: Any, struct: str, path: str) -> Any:
        if value is None:
            return _ABSENT
        if not isinstance(value, dict):
            raise _mismatch(value, struct, path, go)
        items = {key: item_check(member, struct, path) for key, member in value.items()}
        return {
            key: _zero_value(kind.value_type) if member is _ABSENT else member
            for key, member in items.items()
        }

    return check


def _zero_value(kind: inspect.Type) -> object:
    """Return the value that Go decodes from a null in a map or a list; None for a pointer type."""
    match kind:
        case inspect.StrType():
            return ""
        case inspect.IntType():
            return 0
        case inspect.BoolType():
            return False
        case inspect.ListType():
            return []
        case inspect.DictType():
            return {}
        case _:
            return None


def _go_type(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata():
            return str((kind.extra or {}).get("go", "int"))
        case inspect.StructType():
            name = _go_struct(kind.cls)
            return f"api.{name}" if kind.cls.__name__ in _BY_VALUE else f"*api.{name}"
        case inspect.StrType():
            return "string"
        case inspect.BoolType():
            return "bool"
        case inspect.IntType():
            return "int"
        case inspect.ListType():
            return "[]" + _go_type(kind.item_type)
        case inspect.DictType():
            return "map[string]" + _go_type(kind.value_type)
        case _:
            return "interface {}"


def _mismatch(value: object, struct: str, path: str, go: str, kind: str = "") -> Malformed:
    found_kind = kind or go_json.kind(value)
    where = f"Go struct field {struct}.{path}" if path else "Go value"
    return Malformed(f"json: cannot unmarshal {found_kind} into {where} of type {go}")


# --- submitted jobs ---

JobDocument = Annotated[Document, RecordShape(SubmittedJob)]
