"""Known request fields: no other field is dropped without a warning.

`known_fields.txt` lists the fields of every record in a request, and those of every Vault API write
by path. `known_kept.txt` lists fields that are stored without effect. A field that is removed from
the list is dropped from then on, with a warning. Check the effect on clients before removing one.
"""

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

import daemon.api
import storage
from daemon.api.vault_routes import ENDPOINTS, KEPT, KNOWN
from storage.records.codec import SERVERS_OWN, RecordShape, decode

LIST = Path(__file__).parent / "known_fields.txt"
LIST_OF_KEPT = LIST.with_name("known_kept.txt")
DECODED = re.compile(r"request\.decoded?\(([\w.]+)\)")
STRAY = "Stray"
# docs/fields.md lists the effect of these records, and tests/unit/jobspec/test_fields.py checks it.
JOB_RECORDS = {f"storage.records.{name}" for name in ("constraints", "group", "job", "task")}


def requests() -> dict[str, type[msgspec.Struct]]:
    """Return the records that handlers read bodies as, by name."""
    found = {}
    for package in pkgutil.walk_packages(daemon.api.__path__, "daemon.api."):
        module = importlib.import_module(package.name)
        assert module.__file__
        for name in DECODED.findall(Path(module.__file__).read_text()):
            record: Any = module
            for part in name.split("."):
                record = getattr(record, part)
            found[record.__name__] = record
    return found


def records(record: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """Yield a record and all records inside it."""
    seen = []
    waiting = [record]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.append(one)
            yield one
            for hint in get_type_hints(one, include_extras=True).values():
                waiting.extend(inside(hint))


def inside(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, RecordShape):
            yield mark.record
    for argument in getattr(hint, "__args__", ()):
        yield from inside(argument)


def line(record: type[msgspec.Struct]) -> str:
    names = sorted(field.encode_name for field in msgspec.structs.fields(record))
    return f"{record.__name__}: {' '.join(names)}"


def wire_names(record: type[msgspec.Struct]) -> dict[str, str]:
    return {field.name: field.encode_name for field in msgspec.structs.fields(record)}


def test_known_fields_are_listed() -> None:
    every = {line(item) for record in requests().values() for item in records(record)}
    every |= {f"{path}: {' '.join(sorted(names))}".rstrip() for path, names in KNOWN.items()}
    assert sorted(every) == LIST.read_text().splitlines()


def test_fields_without_effect_are_listed() -> None:
    every = {f"{path}: {' '.join(sorted(names))}" for path, names in KEPT.items()}
    every |= {
        f"{item.__name__}: {' '.join(sorted(wire_names(item)[name] for name in item.inert))}"
        for record in requests().values()
        for item in records(record)
        if getattr(item, "inert", None)
    }
    assert sorted(every) == LIST_OF_KEPT.read_text().splitlines()
    assert all(set(names) <= set(KNOWN[path]) for path, names in KEPT.items())


def test_every_write_of_the_vault_api_declares_its_fields() -> None:
    silent = {endpoint.path for endpoint in ENDPOINTS if endpoint.write and endpoint.knows is None}
    assert silent == {"/v1/sys/wrapping/wrap"}  # the route accepts any fields
    assert {endpoint.path for endpoint in ENDPOINTS} >= KNOWN.keys()


# Fields that the daemon never reads, and that need no warning: clients send them back as they have
# read them, or another rule of the request reports them.
UNREAD = {
    "AssertionKey": "a part of OIDCClientAssertion, which causes a warning",
    "ClientAssertion": "a part of OIDCClientAssertion, which causes a warning",
    "OidcCompletion": "the request is refused",
    "OidcUrlRequest": "the request is refused",
    "PauseRequest": "the request is refused",
    "JobRevertRequest": "the tokens are of other products, and are never stored",
}


def test_every_unread_field_of_a_request_causes_a_warning() -> None:
    source = "".join(
        path.read_text()
        for package in (daemon, storage)
        for path in Path(package.__path__[0]).rglob("*.py")
    )
    read = set(re.findall(r"\.(\w+)", source))
    unread = {
        f"{item.__name__}.{field}"
        for record in requests().values()
        for item in records(record)
        if item.__module__ not in JOB_RECORDS and item.__name__ not in UNREAD
        for field in wire_names(item).keys() - read - set(getattr(item, "inert", ()))
        if wire_names(item)[field] not in SERVERS_OWN
    }
    assert unread == set()


@pytest.mark.parametrize("name", sorted(requests()))
def test_unknown_field_of_a_request_is_noted_at_any_depth(name: str) -> None:
    record = requests()[name]
    names = [field.encode_name for field in msgspec.structs.fields(record)]
    document: dict[str, Any] = {STRAY: 1}
    path = STRAY
    if "Job" in names:
        task = {"Name": "t", "Resources": {STRAY: "x"}}
        document["Job"] = {"ID": "a", "TaskGroups": [{"Tasks": [task, task]}]}
        path = f"Job.TaskGroups.Tasks.Resources.{STRAY}"
    unknown: list[str] = []
    decode(record, json.dumps(document).encode(), unknown)
    assert unknown == list(dict.fromkeys([STRAY, path]))


@pytest.mark.parametrize("value", [None, "", 0, False, [], {}, {"a": [None, {"b": 0}]}])
def test_null_unknown_field_is_not_noted(value: object) -> None:
    record = requests()["JobRegisterRequest"]
    unknown: list[str] = []
    decode(record, json.dumps({STRAY: value, "ModifyIndex": 7}).encode(), unknown)
    assert unknown == []
