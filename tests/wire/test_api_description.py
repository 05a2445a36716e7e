"""The API description matches the requests and responses of Nomad's clients."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from daemon.api.openapi import describe
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.web.router import Router
from tests.wire.scenarios import names_in, scenarios
from tests.wire.schema import Schemas, without_nulls

DESCRIPTION: dict[str, Any] = json.loads(msgspec.json.encode(describe(ROUTES, ENDPOINTS, "1")))
SCHEMAS = Schemas(DESCRIPTION)
ROUTER = Router(ROUTES)
ANYTHING: Mapping[str, Any] = {}
# Comparison modes of steps whose recorded response is complete.
WHOLE = ("full", "shape", None)
OTHERWISE = names_in("decided.txt") | names_in("pending.txt")


def steps() -> Iterator[dict[str, Any]]:
    """Yield the steps with a successful response; a later response has its original request."""
    for scenario in scenarios().values():
        known = {step["id"]: step for step in scenario["steps"]}
        for step in scenario["steps"]:
            asked = known.get(step.get("response_of", ""), step).get("request", {})
            status = step.get("response", {}).get("status") or 0
            if (
                "path" in asked
                and 200 <= status < 300
                and not {step["id"], step["scenario"]} & OTHERWISE
            ):
                yield {**step, "request": asked}


def operation(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the description of a request; None if there is no such call."""
    routes, _ = ROUTER.find(re.sub(r"%2F", "/", request["path"]))
    for route in routes:
        found: Mapping[str, Any] = DESCRIPTION["paths"][route.path].get(request["method"].lower())
        if found is not None:
            return found
    return ANYTHING


def takes(request: Mapping[str, Any]) -> Mapping[str, Any]:
    body = operation(request).get("requestBody", ANYTHING)
    return schema_of(body)


def gives(request: Mapping[str, Any]) -> Mapping[str, Any]:
    return schema_of(operation(request).get("responses", ANYTHING).get("200", ANYTHING))


def schema_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = body.get("content", {}).get("application/json", {}).get("schema", {})
    return found


def plain(body: Any) -> Any:
    """Return a recorded body with a number where the schema demands one: placeholders are text."""
    if isinstance(body, dict):
        return {
            name: 1 if _is_placeholder(item) and _is_number(name) else plain(item)
            for name, item in body.items()
        }
    return [plain(item) for item in body] if isinstance(body, list) else body


def _is_placeholder(item: Any) -> bool:
    return isinstance(item, str) and re.fullmatch(r"\{\{[\w.-]+\}\}", item) is not None


def _is_number(name: str) -> bool:
    return name.endswith(("Index", "Version", "Time", "Count", "Port", "Value")) or name == "Index"


def differences(scenario: str, part: str) -> dict[str, list[str]]:
    """Return the differences between the description and the requests or responses of a scenario.

    The result has the problems by step. The requests are compared if `part` is `sent`.
    """
    found = {}
    for step in BY_SCENARIO[scenario]:
        request = step["request"]
        if part == "sent":
            schema, body = takes(request), without_nulls(request.get("body"))
        else:
            schema, body = gives(request), step["response"].get("body")
        if isinstance(body, dict | list) and step.get("compare") in WHOLE:
            found[step["id"]] = list(SCHEMAS.problems(schema, plain(body)))
    return {step: problems for step, problems in found.items() if problems}


BY_SCENARIO: dict[str, list[dict[str, Any]]] = {}
for one in steps():
    BY_SCENARIO.setdefault(one["scenario"], []).append(one)


@pytest.mark.parametrize("scenario", BY_SCENARIO)
def test_sent_requests_match_the_description(scenario: str) -> None:
    assert differences(scenario, "sent") == {}


@pytest.mark.parametrize("scenario", BY_SCENARIO)
def test_responses_match_the_description(scenario: str) -> None:
    assert differences(scenario, "answered") == {}


def test_most_captured_responses_are_described() -> None:
    described = [step for found in BY_SCENARIO.values() for step in found if gives(step["request"])]
    assert len(described) > 800
