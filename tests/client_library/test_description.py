"""The library agrees with the OpenAPI description: its requests, and the records that it reads.

A server for tests checks each request against the description. It answers with a value for every
described field, so a field of a record that stays empty is not described.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx
import msgspec
import pytest
import steward_client
from steward_client import (
    Client,
    CloudLogin,
    Dispatch,
    DispatchesFailed,
    InvalidResponse,
    Job,
    sessions,
)
from steward_client.wire import Record

from daemon.api.openapi import describe
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.web.router import Router
from tests.wire.schema import Schemas

DESCRIPTION: dict[str, Any] = json.loads(msgspec.json.encode(describe(ROUTES, ENDPOINTS, "1")))
TYPES: Mapping[str, Any] = DESCRIPTION["components"]["schemas"]
SCHEMAS, ROUTER = Schemas(DESCRIPTION), Router(ROUTES)
DEEPEST = 2  # nesting levels of a type that contains itself
SOURCES = sorted(Path(steward_client.__file__).parent.glob("*.py"))
# The description has no types for log frames, for payloads of events, and for the
# Vault API.
UNDESCRIBED = (
    *("steward_client.logs", "steward_client.login"),
    *("steward_client.events._Gap", "steward_client.events._Range"),
)
# Requests that no method sends on its own: renewals, and the check of a token after a refusal.
LATER = {"/v1/auth/token/renew-self", "/v1/acl/token/self"}
LOGIN = {"auth": {"client_token": "x", "lease_duration": 3600, "renewable": True}}
DEAD = {"ID": "x", "Status": "dead", "Type": "batch", "Version": 1}


def full(
    schema: Mapping[str, Any], types: Mapping[str, Any] = TYPES, above: tuple[str, ...] = ()
) -> Any:
    """Return a value of a schema in which every field differs from its default."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return full(types[name], types, (*above, name)) if above.count(name) < DEEPEST else None
    if choices := [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]:
        return full(choices[0], types, above)
    if "enum" in schema:
        return next(one for one in schema["enum"] if one)
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            named = {name: full(one, types, above) for name, one in fields.items()}
            others = schema.get("additionalProperties")
            return {**named, "x": full(others, types, above)} if isinstance(others, dict) else named
        case "array":
            one = full(schema.get("items", {}), types, above)
            return [] if one is None else [one]
        case "string":
            return "eA=="  # also valid base64
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case _:
            return {"x": "x"}


def whole_job() -> Job:
    """Return a job in which every field of the library has a value."""
    (schema,), types = msgspec.json.schema_components([Job], schema_hook=lambda _: {"title": "any"})
    return msgspec.convert(full(schema, types), Job)


def unknown(schema: Mapping[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """Yield the fields of a value that a schema does not have."""
    if reference := schema.get("$ref"):
        yield from unknown(TYPES[reference.rpartition("/")[2]], value, path)
    elif choices := [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]:
        yield from min((list(unknown(one, value, path)) for one in choices), key=len)
    elif isinstance(value, dict):
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if inner is None and "properties" in schema:
                yield f"{path}/{name}"
            elif isinstance(inner, dict):
                yield from unknown(inner, item, f"{path}/{name}")
    elif isinstance(value, list):
        for item in value:
            yield from unknown(schema.get("items", {}), item, path)


class DescribedServer:
    """A server that responds as described; `answers` replaces fields of responses, by path."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.answers: dict[str, Any] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path, operation = self._operation(request)
        self.asked.add(f"{request.method} {path}")
        described = {item["name"] for item in operation.get("parameters", ())}
        assert {*request.url.params} - described == set(), f"{request.method} {path}"
        sent = _schema(operation.get("requestBody", {}))
        lines = request.content.splitlines() if path.endswith("/bulk") else [request.content]
        for line in filter(None, lines if sent else ()):
            body = json.loads(line)
            assert [*SCHEMAS.problems(sent, body), *unknown(sent, body)] == []
        schema = _schema(operation["responses"].get("200", {}))
        answer = self.answers.get(path, full(schema) if schema else {})
        headers = {"X-Nomad-Index": str(len(self.asked) + 1)}
        return httpx.Response(200, headers=headers, content=msgspec.json.encode(answer) + b"\n")

    def _operation(self, request: httpx.Request) -> tuple[str, Any]:
        method, path = request.method.lower(), request.url.raw_path.decode().partition("?")[0]
        for found in ROUTER.find(path)[0]:
            if method in DESCRIPTION["paths"][found.path]:
                return found.path, DESCRIPTION["paths"][found.path][method]
        for template, methods in DESCRIPTION["paths"].items():
            pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
            if method in methods and re.fullmatch(pattern, path):
                return template, methods[method]
        raise AssertionError(f"{request.method} {path} is not described")


def _schema(body: Mapping[str, Any]) -> Any:
    return next(iter(body.get("content", {}).values()), {}).get("schema", {})


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Return a dictionary that gets, by record, the names of the fields that the library reads."""
    found: dict[str, set[str]] = {}
    convert = msgspec.convert

    def spy(*given: Any, **named: Any) -> Any:
        note(made := convert(*given, **named))
        return made

    def note(made: Any) -> None:
        if isinstance(made, Record):
            has = found.setdefault(_name(type(made)), set())
            for field in msgspec.structs.fields(made):
                value = getattr(made, field.name)
                if field.required or value != field.default:
                    has.add(field.name)
                note(value)
        for item in (
            made.values() if isinstance(made, dict) else made if isinstance(made, list) else ()
        ):
            note(item)

    monkeypatch.setattr(msgspec, "convert", spy)
    return found


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def every(kind: type) -> Iterator[type]:
    for inner in kind.__subclasses__():
        yield inner
        yield from every(inner)


def literals() -> set[str]:
    """Return the paths in the sources of the library, with `{}` in place of their parameters."""
    found = set()
    for node in (node for one in SOURCES for node in ast.walk(ast.parse(one.read_text()))):
        match node:
            case ast.JoinedStr(values=parts):
                text = "".join(
                    str(getattr(part, "value", "")) if isinstance(part, ast.Constant) else "{}"
                    for part in parts
                )
            case ast.Constant(value=str(text)):
                pass
            case _:
                continue
        if text.startswith("/v1/") and not text.endswith("/"):  # otherwise a part of another text
            found.add(text)
    return found


async def use(server: DescribedServer, tmp_path: Path) -> None:
    """Call every method of the client once."""
    job, given = whole_job(), {"prefix": "x", "namespace": "x"}
    (tmp_path / "input").write_bytes(b"x")
    server.answers["/v1/auth/{mount}/login"] = LOGIN
    server.answers["/v1/jobs/parse"] = DEAD  # its response can have null for any field
    login = CloudLogin(role="x", jwt="x")
    transport = httpx.MockTransport(server)
    async with Client("http://steward", login=login, transport=transport) as client:
        parsed = await client.parse("job", variables="v", flags={"a": "b"})
        assert parsed.id
        await client.plan(job)
        run = await client.run(job, enforce_index=1, files={"a": "b"})
        await client.jobs(**given)
        await client.variables(**given)
        for call in (client.job, client.job_document, client.deployment, client.allocations):
            await call("x", namespace="x")
        await client.stop("x", purge=True, namespace="x")
        await client.evaluation("x")
        await client.allocation("x")
        one = {"payload": b"x", "meta": {"a": "b"}, "files": {"a": "b"}, "idempotency_token": "x"}
        await client.dispatch("x", **one, namespace="x")
        with pytest.raises(DispatchesFailed):  # each line has a child and an error
            await client.dispatch_many("x", [Dispatch(**one)], namespace="x")
        await client.upload(tmp_path / "input", namespace="x")
        await client.read_file("x", "x")
        (file,) = await client.kept_files("x")
        with pytest.raises(InvalidResponse, match="does not match its digest"):
            await client.save_kept("x", file, tmp_path / "kept")
        await client.variable("a/b", namespace="x")
        async with client.lock("a/b") as lock:
            await client.put_variable("a/b", {"a": "b"}, cas=1, lock=lock, namespace="x")
        await client.delete_variable("a/b", cas=1, namespace="x")
        await client.output("x", "x", last=1)
        assert [piece async for piece in client.logs("x", "x")] == []
        async with aclosing(client.events({"Job": ["x"]}, index=1, namespace="x")) as stream:
            assert (await anext(stream)).topic
        async with aclosing(client.follow(run)) as followed:
            await anext(followed)
        server.answers["/v1/job/{job_id}"] = DEAD
        await client.wait("x", namespace="x")


async def test_requests_and_records_are_described(
    tmp_path: Path, seen: dict[str, set[str]]
) -> None:
    server = DescribedServer()
    await use(server, tmp_path)
    assert {re.sub(r"\{\w+\}", "{}", one.partition(" ")[2]) for one in server.asked} >= {
        one for one in literals() if "exec" not in one and one not in LATER
    }
    fields = {
        _name(kind): {*kind.__struct_fields__}
        for kind in every(Record)
        if not _name(kind).startswith(UNDESCRIBED)
    }
    empty = {name: has - seen.get(name, set()) for name, has in fields.items()}
    assert {name: missing for name, missing in empty.items() if missing} == {}


@pytest.mark.parametrize("path", sorted(literals()))
def test_every_path_is_described(path: str) -> None:
    described = {re.sub(r"\{\w+\}", "{}", one) for one in DESCRIPTION["paths"]}
    assert path in described


async def test_parameters_of_exec_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    targets: list[str] = []

    async def open_socket(self: object, target: str, token: str) -> None:
        targets.append(target)
        raise InvalidResponse("no more is needed")

    async def connect(connection: object) -> Any:
        return AsyncExitStack()

    monkeypatch.setattr(sessions._Socket, "open", open_socket)
    monkeypatch.setattr(sessions, "_connect", connect)
    async with Client("http://steward", namespace="x") as client:
        with pytest.raises(InvalidResponse, match="no more"):
            await client.exec_run("x", ["x"], task="x")
    path, _, query = targets[0].partition("?")
    operation = DESCRIPTION["paths"]["/v1/client/allocation/{alloc_id}/exec"]["get"]
    assert path == "/v1/client/allocation/x/exec"
    assert {*parse_qs(query)} <= {item["name"] for item in operation["parameters"]}
