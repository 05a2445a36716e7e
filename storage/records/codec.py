# ruff: noqa: ANN401  # documents hold anything until they are checked here
"""What msgspec cannot know of the wire: Go's way with JSON, and two spellings of some names.

Clients were written against a server in Go. So names match in any case, `null` means absent,
unknown names are passed over, and text after the first value does not matter; and the error texts
are Go's, because scripts match them. Names that exist in a neutral and in the vendor's spelling
are read in either and written in both.

Bare dictionaries live here only: a `Document` is a JSON object whose names are spelled as
`wire_name` spells them, whose nulls are gone, and whose types have been checked.
"""

import json
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from math import isfinite
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import inspect

from storage.errors import Malformed
from storage.records import gojson, numbers
from storage.records.job import Job, SubmittedJob

T = TypeVar("T", bound=msgspec.Struct)

Document = dict[str, Any]

# neutral name -> name used by the vendor's clients; no other two names mean the same.
ALIASES = {
    "SecretsToken": "VaultToken",
    "ServiceDiscoveryToken": "ConsulToken",
    "ServiceTokenID": "NomadTokenID",
    "SecretsNamespace": "VaultNamespace",
    "SecretsError": "VaultError",
    "SecretsConfig": "Vault",
}

MAX_DEPTH = 100  # of nested JSON: a job has about ten levels
# Of one body: nobody else has a turn while the interpreter makes them, up to 25 ms for so many. A job
# of 2,000 groups has 60,000.
MAX_VALUES = 200_000
_FEW = 3 * MAX_VALUES  # bytes that cannot hold more: `{},`
_QUOTES = 4  # quotes that are as much work as a value
_MOST_READ_SLOWLY = 1024 * 1024  # bytes: some 500 ms
_MOST_DIGITS = 308  # of a number: as many as floating point can hold


class Shape:
    """Marks a `Document` field that must look like a record without becoming one."""

    def __init__(self, record: type[msgspec.Struct]) -> None:
        self.record = record


# Fields that the server alone sets: clients send them back with whatever they have read.
SERVERS_OWN = frozenset(
    {
        *("CreateIndex", "ModifyIndex", "JobModifyIndex", "CreateTime", "ModifyTime", "Hash"),
        "SecretID",  # of a token that is changed
    }
)
_MOST_UNKNOWN = 20  # fields that are named
_LONGEST_NAME = 100  # characters of one
_unknown: ContextVar[list[str] | None] = ContextVar("unknown", default=None)


def decode(record: type[T], body: bytes, unknown: list[str] | None = None) -> T:
    """Return a request body as a record. Raises `Malformed` with Go's text.

    `unknown` gets the paths of fields that no record has and that say something.
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
    """Note a field that is passed over, unless it says nothing, as those of clients often do."""
    unknown = _unknown.get()
    if unknown is None or key in SERVERS_OWN or says_nothing(value):
        return
    name = f"{path}.{key}"[:_LONGEST_NAME] if path else key[:_LONGEST_NAME]
    if name not in unknown and len(unknown) < _MOST_UNKNOWN:
        unknown.append(name)


def says_nothing(value: object) -> bool:
    """Tell whether a value is null, empty or zero, as many clients send for what they know."""
    waiting = [value]
    while waiting:  # however deep it is
        one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
        elif one:
            return False
    return True


def parse(body: bytes) -> object:
    """Return the first JSON value of a body. Raises `Malformed` with Go's text."""
    if not body:
        raise Malformed("Request body is empty")
    if len(body) > _FEW and has_more_values(body, MAX_VALUES):
        raise Malformed(f"the body has more than {MAX_VALUES} JSON values: send less at once")
    try:
        value: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if len(body) > _MOST_READ_SLOWLY:
            raise Malformed(f"the body is no JSON: {error}") from error
        # Either wrong or, rarely, a value with something behind it: the slow way tells which.
        value = _first_value(body)
    if _too_deep(value, MAX_DEPTH):
        raise Malformed(f"the body is nested more than {MAX_DEPTH} levels deep")
    return value


def has_more_values(body: bytes, most: int) -> bool:
    """Tell whether a body of JSON has more values than `most`, before any of them is made.

    One with very many quotes counts as such a body, too.
    """
    if _separators(body, 0, len(body)) < most:
        return False
    at, values, is_outside = 0, 0, True  # of texts
    for _ in range(_QUOTES * most):
        quote = body.find(b'"', at)
        if is_outside:
            values += _separators(body, at, len(body) if quote < 0 else quote)
        if quote < 0 or values >= most:
            return values >= most
        if is_outside or not _is_escaped(body, quote):
            is_outside = not is_outside
        at = quote + 1
    return True


def _separators(body: bytes, start: int, end: int) -> int:
    """Return how many values begin in a part of a body; those behind a colon follow one of these."""
    return sum(body.count(sign, start, end) for sign in (b",", b"{", b"["))


def _is_escaped(body: bytes, at: int) -> bool:
    before = at
    while before and body[before - 1] == 0x5C:  # a backslash
        before -= 1
    return (at - before) % 2 == 1


def _first_value(body: bytes) -> object:
    end = gojson.end_of_first_value(body, MAX_DEPTH)
    try:
        text = body[:end].decode(errors="replace")
        value = json.loads(text, parse_int=_read_whole, parse_float=_read_float)
        return _sound(value, "")
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from error


class _Beyond(str):
    """The text of a number that is beyond what a number can be."""

    __slots__ = ()


def _read_whole(text: str) -> int | _Beyond:
    return int(text) if len(text) <= _MOST_DIGITS else _Beyond(text)


def _read_float(text: str) -> float | _Beyond:
    value = float(text)
    return value if isfinite(value) else _Beyond(text)


def _sound(value: Any, path: str) -> object:
    """Return a value with U+FFFD for halves of surrogate pairs, as Go reads them.

    Raises `Malformed` for a number that cannot be one.
    """
    match value:
        case _Beyond():
            raise Malformed(f"{path or 'the body'}: the number {numbers.short(value)} is too large")
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case list():
            return [_sound(item, f"{path}[{at}]") for at, item in enumerate(value)]
        case dict():
            return {
                _sound(key, path): _sound(item, f"{path}.{key}" if path else str(key))
                for key, item in value.items()
            }
        case _:
            return value


def _too_deep(value: object, levels: int) -> bool:
    if isinstance(value, dict):
        return not levels or any(_too_deep(item, levels - 1) for item in value.values())
    if isinstance(value, list):
        return not levels or any(_too_deep(item, levels - 1) for item in value)
    return False


def encode(value: object) -> bytes:
    """Return a record, or anything made of records, as JSON."""
    return msgspec.json.encode(value)


# ---- jobs, in both spellings ---------------------------------------------------------------

# Fields of a job that are kept beside its stored document (`JobHead`).
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
    """Return the definition of a job as it is stored: in both spellings, without its head."""
    document = msgspec.to_builtins(job)
    for name in HEAD_FIELDS:
        del document[name]
    return encode(spell_job_twice(document)).decode()


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


# ---- reading by the types of records ---------------------------------------------------------

_ABSENT: Any = object()  # what null becomes
# value, name of the enclosing Go struct, path of Go field names -> checked value
_Check = Callable[[Any, str, str], Any]


@cache
def _read(record: type) -> _Check:
    """Return the function that checks and respells a JSON object meant for this record."""
    kind = inspect.type_info(record)
    assert isinstance(kind, inspect.StructType)  # noqa: S101  # as every record is
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
        for key, item in value.items():
            known = fields.get(key.lower())
            if known is None:
                _note_unknown(key, item, path)
                continue
            field_name, check = known
            checked = check(item, name, f"{path}.{field_name}" if path else field_name)
            if checked is not _ABSENT:
                document[field_name] = checked
        return document

    return check_object


def _go_struct(record: type) -> str:
    """Return what Go calls this record."""
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
# In Go these stand in lists by value; everything else by pointer.
_BY_VALUE = frozenset({"Port", "Check", "Secret"})


def _field_check(hint: object, kind: inspect.Type) -> _Check:
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, Shape):
            return _read(mark.record)
    for argument in getattr(hint, "__args__", ()):  # Annotated[...] | None
        for mark in getattr(argument, "__metadata__", ()):
            if isinstance(mark, Shape):
                return _read(mark.record)
    return _checked(kind)


def _checked(kind: inspect.Type, extra: dict[str, str] | None = None) -> _Check:
    match kind:
        case inspect.Metadata():
            return _checked(kind.type, kind.extra)
        case inspect.UnionType():
            return _checked(
                next(one for one in kind.types if not isinstance(one, inspect.NoneType))
            )
        case inspect.StructType():  # known to the bottom: to look again would take much longer
            return _object(kind)
        case inspect.StrType():
            return _scalar(str, (extra or {}).get("go", "string"))
        case inspect.BoolType():
            return _scalar(bool, "bool")
        case inspect.IntType():
            return _integer((extra or {}).get("go", "int"))
        case inspect.ListType():
            return _list(kind)
        case inspect.DictType():
            return _map(kind)
        case _:
            return lambda value, struct, path: _ABSENT if value is None else value


def _scalar(wanted: type, go: str) -> _Check:
    def check(value: Any, struct: str, path: str) -> Any:
        if value is None:
            return _ABSENT
        if type(value) is not wanted:
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
            raise _mismatch(value, struct, path, go, f"number {gojson.number(value)}")
        raise _mismatch(value, struct, path, go)

    return check


def _list(kind: inspect.ListType) -> _Check:
    item_check = _checked(kind.item_type)
    go = "[]" + _go_type(kind.item_type)

    def check(value: Any, struct: str, path: str) -> Any:
        if value is None:
            return _ABSENT
        if not isinstance(value, list):
            raise _mismatch(value, struct, path, go)
        items = [item_check(item, struct, path) for item in value]
        return [item for item in items if item is not _ABSENT]

    return check


def _map(kind: inspect.DictType) -> _Check:
    item_check = _checked(kind.value_type)
    go = "map[string]" + _go_type(kind.value_type)

    def check(value: Any, struct: str, path: str) -> Any:
        if value is None:
            return _ABSENT
        if not isinstance(value, dict):
            raise _mismatch(value, struct, path, go)
        items = {key: item_check(item, struct, path) for key, item in value.items()}
        return {
            key: _zero(kind.value_type) if item is _ABSENT else item for key, item in items.items()
        }

    return check


def _zero(kind: inspect.Type) -> object:
    """Return what Go makes of a null inside a map."""
    return "" if isinstance(kind, inspect.StrType) else None


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
    what = kind or gojson.kind(value)
    where = f"Go struct field {struct}.{path}" if path else "Go value"
    return Malformed(f"json: cannot unmarshal {what} into {where} of type {go}")


# ---- what a client may submit beyond what a job has ---------------------------------------------

JobDocument = Annotated[Document, Shape(SubmittedJob)]
