"""The description of the API: complete, consistent, and without extra routes."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from daemon.api.contract import CONTRACTS
from daemon.api.openapi import describe
from daemon.api.openapi_page import handlers
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.web.lazy import unwrap_handler

DESCRIPTION: dict[str, Any] = json.loads(msgspec.json.encode(describe(ROUTES, ENDPOINTS, "1")))
OPERATIONS = [
    (f"{method.upper()} {path}", operation)
    for path, methods in DESCRIPTION["paths"].items()
    for method, operation in methods.items()
]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{min(route.methods)} {route.path}")
def test_every_route_is_described(route: Any) -> None:
    assert {method.lower() for method in route.methods} <= DESCRIPTION["paths"][route.path].keys()


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_every_endpoint_of_the_vault_api_is_described(endpoint: Any) -> None:
    methods = DESCRIPTION["paths"][endpoint.path]
    assert ("get" in methods) == bool(endpoint.read or endpoint.list)
    assert ("post" in methods, "delete" in methods) == (bool(endpoint.write), bool(endpoint.delete))


@pytest.mark.parametrize(("name", "operation"), OPERATIONS)
def test_every_call_has_a_description(name: str, operation: Any) -> None:
    assert operation["summary"].endswith(".")
    assert "(source:" not in operation["summary"]


def test_every_call_has_a_unique_name() -> None:
    names = [operation["operationId"] for _, operation in OPERATIONS]
    assert len(set(names)) == len(names)


def test_every_schema_belongs_to_a_route() -> None:
    assert CONTRACTS.keys() - {unwrap_handler(route.handler) for route in ROUTES} == set()


def test_every_referenced_type_is_described() -> None:
    known = {f"#/components/schemas/{name}" for name in DESCRIPTION["components"]["schemas"]}
    assert set(references(DESCRIPTION)) - known == set()


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(reference := value.get("$ref"), str):
            yield reference
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_registration_contains_a_job() -> None:
    job = DESCRIPTION["components"]["schemas"]["JobRegisterRequest"]["properties"]["Job"]
    assert job["anyOf"][0] == {"$ref": "#/components/schemas/SubmittedJob"}


def test_page_names_every_call_and_loads_no_other_file() -> None:
    _, page = handlers(lambda: ROUTES, ENDPOINTS)
    reply = page(None, None)  # the handler ignores both arguments
    body = bytes(reply.body).decode()
    assert all(f"<code>{path}</code>" in body for path in DESCRIPTION["paths"])
    assert all(word not in body for word in ("<script", "<img", "src=", "http://", "https://"))
    assert "default-src 'none'" in reply.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("allocations", {"filter", "holding", "per_page", "next_token", "reverse"}),
        ("hosts", {"per_page", "next_token", "reverse"}),
    ],
)
def test_lists_of_a_node_name_their_parameters(path: str, names: set[str]) -> None:
    operation = DESCRIPTION["paths"][f"/v1/node/{{node_id}}/{path}"]["get"]
    assert {item["name"] for item in operation["parameters"]} >= names
