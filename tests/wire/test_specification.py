"""The specification is implemented completely: each fact has a route, a field and a scenario."""

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any

import msgspec
import pytest

from daemon.api.contract import CONTRACTS, EndpointSchema, JobRegistrationBody
from daemon.api.openapi import describe
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.jobs.dispatch import MAX_PAYLOAD
from daemon.web.lazy import unwrap_handler
from daemon.web.request import ReadRoute, Route
from daemon.web.router import Router
from storage.queries import submissions
from storage.records import allocation, deployment, evaluation, job
from storage.records.codec import ALIASES
from tests.wire.scenarios import scenarios
from tests.wire.specification import (
    CALLS,
    ELSEWHERE,
    NAMED_OTHERWISE,
    RECORDS,
    REQUIRED,
    RULES,
    STATES,
    Call,
)

DESCRIPTION: Any = json.loads(msgspec.json.encode(describe(ROUTES, ENDPOINTS, "1")))
TYPES: Mapping[str, Any] = DESCRIPTION["components"]["schemas"]
ROUTER = Router(ROUTES)


def route_of(call: Call) -> Route | None:
    found = [route for route in ROUTES if route.path == call.path and call.method in route.methods]
    return found[0] if found else None


def contract_of(call: Call) -> EndpointSchema:
    route = route_of(call)
    assert route is not None
    return CONTRACTS[unwrap_handler(route.handler)]


@cache
def captured() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the captured steps by method and path of the call."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for scenario in scenarios().values():
        for step in scenario["steps"]:
            request = step.get("request", {})
            routes, _ = ROUTER.find(request.get("path", "").replace("%2F", "/"))
            if routes:
                method = "POST" if request["method"] == "PUT" else request["method"]
                found.setdefault((method, routes[0].path), []).append(step)
    return found


def steps_of(call: Call) -> list[dict[str, Any]]:
    return captured()[call.method, call.path]


def queries(call: Call) -> Iterator[set[str]]:
    for step in steps_of(call):
        query = step["request"].get("query") or {}
        yield {pair[0] for pair in (query.items() if isinstance(query, dict) else query)}


def bodies(call: Call) -> Iterator[set[str]]:
    for step in steps_of(call):
        body = step["request"].get("body")
        if isinstance(body, dict):
            yield set(body)


def answers(call: Call) -> Iterator[set[str]]:
    for step in steps_of(call):
        body = step.get("response", {}).get("body")  # some responses are in a later step
        for item in body if isinstance(body, list) else [body]:
            if isinstance(item, dict):
                yield set(item)


def facts(part: str) -> list[tuple[str, str]]:
    """Return the facts of one part of all implemented calls: name of the call, name of the fact."""
    return [(name, fact) for name in CALLS for fact in getattr(CALLS[name], part)]


# ---- the calls --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_every_call_exists(name: str) -> None:
    assert route_of(CALLS[name]) is not None


@pytest.mark.parametrize("name", CALLS)
def test_every_call_has_been_captured(name: str) -> None:
    assert steps_of(CALLS[name])


@pytest.mark.parametrize("name", CALLS)
def test_call_supports_blocking_queries_as_specified(name: str) -> None:
    route = route_of(CALLS[name])
    assert (isinstance(route, ReadRoute) and bool(route.watch)) is CALLS[name].blocking


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name].needs])
def test_each_capability_is_sufficient(name: str) -> None:
    route = route_of(CALLS[name])
    assert route is not None
    assert set(CALLS[name].needs.split()) - set(route.needs.any_of) == set()


@pytest.mark.parametrize(("name", "parameter"), facts("query"))
def test_every_parameter_is_read_and_shown(name: str, parameter: str) -> None:
    assert parameter in contract_of(CALLS[name]).query
    assert any(parameter in query for query in queries(CALLS[name]))


@pytest.mark.parametrize(
    ("name", "parameter"),
    [(name, one) for name, one in facts("query") if CALLS[name].query[one] != REQUIRED],
)
def test_every_parameter_is_optional(name: str, parameter: str) -> None:
    assert any(parameter not in query for query in queries(CALLS[name]))


@pytest.mark.parametrize(("name", "field"), facts("body"))
def test_every_field_of_a_body_is_decoded(name: str, field: str) -> None:
    decoded = fields_of(contract_of(CALLS[name]).takes)
    assert field in decoded
    default = CALLS[name].body[field]
    if default != REQUIRED:
        # An unset value may differ from the effective default.
        assert (plain(decoded[field]) or None) == (default or None)


@pytest.mark.parametrize(("name", "field"), facts("body"))
def test_every_field_of_a_body_has_been_captured(name: str, field: str) -> None:
    sent = {item for body in bodies(CALLS[name]) for item in body}
    assert {field, ALIASES.get(field, field)} & sent


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name].answer])
def test_every_field_of_a_response_is_present(name: str) -> None:
    wanted = set(CALLS[name].answer.split())
    assert wanted - properties(contract_of(CALLS[name])) == set()


@pytest.mark.parametrize("name", CALLS)
def test_every_field_of_a_response_has_been_captured(name: str) -> None:
    wanted = set(CALLS[name].answer.split())
    assert wanted - {item for answer in answers(CALLS[name]) for item in answer} == set()


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name].overrides])
def test_calls_checked_by_policies_have_an_override(name: str) -> None:
    assert "PolicyOverride" in CALLS[name].body


def fields_of(record: object) -> dict[str, object]:
    """Return the fields of a record on the wire, with their defaults."""
    assert isinstance(record, type)
    return {
        field.encode_name: None if field.default is msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(record)
    }


def plain(default: object) -> object:
    return msgspec.to_builtins(default)


def properties(contract: EndpointSchema) -> set[str]:
    """Return the fields of a call's response, or of each element of it."""
    schema = msgspec.json.schema_components(
        [contract.gives], schema_hook=lambda _: {"title": "any"}, ref_template="{name}"
    )[0][0]
    named = schema.get("items", schema)
    named = named["anyOf"][-1] if "anyOf" in named and "$ref" not in named["anyOf"][0] else named
    named = named.get("anyOf", [named])[0]
    return set(TYPES[named["$ref"]]["properties"])


# ---- the records ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "field"), [(name, part) for name, text in RECORDS.items() for part in text.split()]
)
def test_every_field_of_a_record_exists(record: str, field: str) -> None:
    name = NAMED_OTHERWISE.get((record, field), field)
    place = ELSEWHERE.get((record, field), record)
    assert name in TYPES[place]["properties"]


def test_service_registration_has_the_specified_fields() -> None:
    assert set(CALLS["Job Services"].answer.split()) == fields_of(JobRegistrationBody).keys()


KNOWN: Mapping[tuple[str, str], type[StrEnum]] = {
    ("Job", "Status"): job.JobStatus,
    ("Job", "Type"): job.JobType,
    ("Evaluation", "Status"): evaluation.EvalStatus,
    ("Evaluation", "TriggeredBy"): evaluation.Trigger,
    ("Deployment", "Status"): deployment.DeploymentStatus,
    ("Allocation", "DesiredStatus"): allocation.DesiredStatus,
    ("Allocation", "ClientStatus"): allocation.ClientStatus,
    ("TaskState", "State"): allocation.TaskPhase,
}


@pytest.mark.parametrize(
    ("state", "value"), [(state, part) for state, text in STATES.items() for part in text.split()]
)
def test_every_state_is_known(state: tuple[str, str], value: str) -> None:
    assert value in list(KNOWN[state])


# ---- limits and rules -------------------------------------------------------------------------


def test_limits_match_the_specification() -> None:
    assert (MAX_PAYLOAD, submissions.KEPT) == (16384, 6)


@pytest.mark.parametrize(("rule", "shown"), RULES.items())
def test_every_rule_has_been_captured(rule: str, shown: str) -> None:
    steps = {step["id"] for scenario in scenarios().values() for step in scenario["steps"]}
    assert shown in steps | scenarios().keys()
