"""Unusual requests, drawn from the description of the API: half valid, half invalid.

Names and texts come from short lists. So requests meet objects of earlier requests, and no drawn
command has an effect.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from hypothesis import strategies as st

from daemon.api.contract import CONTRACTS, EndpointSchema, ParameterType
from daemon.api.openapi import describe
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.web.lazy import unwrap_handler
from daemon.web.request import ReadRoute, WriteRoute

DESCRIPTION: Any = json.loads(msgspec.json.encode(describe(ROUTES, ENDPOINTS, "1")))
TYPES: Mapping[str, Any] = DESCRIPTION["components"]["schemas"]

USUAL = ("a", "b", "a/b")  # the names in most requests, so that requests meet the same objects
IDS = ("é ☃", "a%2Fb", "plan", "*", "..", "", "x" * 300, "\x00", "'; DROP")
# Placeholder for the identifier of an existing object; `send.py` replaces it.
KNOWN = {
    "alloc_id": "ALLOCATION",
    "eval_id": "EVALUATION",
    "deployment_id": "DEPLOYMENT",
    "node_id": "NODE",
}
UUIDS = ("00000000-0000-0000-0000-000000000000", "0000", "zz", "0" * 36)
TEXTS = (*USUAL, *IDS, "web", "main", "default", "service", "1", "-1", "1h")
NUMBERS = (0, 1, 1, 2, 20, -1, 100, 101, 2**31, 2**63 - 1, 2**64, -(2**63), 1_000_000_000)
JUNK = (None, True, "", "x", 0, -1, 1.5, 1e300, [], {}, [None], {"": None}, [[[[[[]]]]]])
BODIES = (b"", b"{", b"null", b"[]", b'"x"', b"\xff", b"{}x", b"[" * 3000, b'{"Job":null}', b"1e9")
MAX_DEPTH = 6


def one_in(number: int) -> st.SearchStrategy[bool]:
    """Draw a Boolean that is true once in this many draws."""
    return st.integers(1, number).map(lambda drawn: drawn == number)


class Asked(NamedTuple):
    """A request, as it is sent."""

    method: str
    target: str
    body: bytes | None
    headers: Mapping[str, str]


def values(schema: Mapping[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Return a strategy for values that a schema describes."""
    if depth > MAX_DEPTH:
        return st.none()
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        if name == "SubmittedJob":
            return jobs(depth)
        return values(TYPES[name], depth).map(partial(_fitting, name))
    if choices := schema.get("anyOf"):
        return st.one_of(*(values(choice, depth) for choice in choices))
    kind = schema.get("type")
    if kind == "array":
        return st.lists(values(schema.get("items", {}), depth + 1), max_size=2)
    return objects(schema, depth) if kind == "object" else _SCALARS.get(kind, _ANYTHING)


_ANYTHING = st.sampled_from(JUNK)
_SCALARS: Mapping[Any, st.SearchStrategy[Any]] = {
    "string": st.sampled_from(TEXTS),
    "integer": st.sampled_from(NUMBERS),
    "number": st.sampled_from((*NUMBERS, 0.5)),
    "boolean": st.booleans(),
}


def _fitting(name: str, drawn: Any) -> Any:
    """Insert names of existing objects where a request needs them: few random names would exist."""
    if name == "ScalingRequest" and isinstance(drawn, dict):
        return {"Target": {"Group": "web"}, "Message": "m", **drawn}
    if name.startswith("Deployment") and isinstance(drawn, dict):
        return {**drawn, "DeploymentID": "DEPLOYMENT"}
    return drawn


@st.composite
def objects(draw: st.DrawFn, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Draw some of the fields of an object, and sometimes an invalid field."""
    fields = schema.get("properties")
    if not fields:
        others = schema.get("additionalProperties") or {}
        inner = values(others if isinstance(others, dict) else {}, depth + 1)
        return draw(st.dictionaries(st.sampled_from(TEXTS), inner, max_size=2))
    most = draw(st.sampled_from((0, 0, 1, 3)))
    chosen = draw(st.lists(st.sampled_from(sorted(fields)), max_size=most, unique=True))
    drawn = {}
    for name in [*(["Job"] if "Job" in fields else []), *chosen]:
        wrong = draw(one_in(30))
        drawn[name] = draw(st.sampled_from(JUNK) if wrong else values(fields[name], depth + 1))
    return drawn


@st.composite
def jobs(draw: st.DrawFn, depth: int) -> dict[str, Any]:
    """Draw a plausible job, sometimes with invalid parts."""
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Resources": {"CPU": 1, "MemoryMB": 10},
        **draw(_strange("Task", depth + 2)),
        "Config": {"command": "/bin/true"},  # the only command that runs
    }
    group = {
        "Name": "web",
        "Count": draw(st.integers(0, 2)),
        **draw(_strange("TaskGroup", depth + 1)),
        "Tasks": [task],
    }
    job = {
        "ID": draw(st.sampled_from(USUAL)),
        "Type": draw(st.sampled_from(("batch", "batch", "service", "system", "sysbatch"))),
        **draw(st.sampled_from(({}, {}, {"ParameterizedJob": {}}, {"Periodic": _CLOCK}))),
        **draw(_strange("SubmittedJob", depth)),
        "TaskGroups": [group],
    }
    return draw(st.sampled_from(JUNK)) if draw(one_in(50)) else job


_CLOCK = {"Spec": "* * * * * * *", "ProhibitOverlap": True}


@st.composite
def _strange(draw: st.DrawFn, name: str, depth: int) -> dict[str, Any]:
    return draw(objects(TYPES[name], depth)) if draw(one_in(2)) else {}


def _parameter(name: str) -> st.SearchStrategy[str]:
    if name in KNOWN:
        return st.sampled_from((KNOWN[name],) * 6 + UUIDS)
    if name.endswith(("accessor", "_id")) and name != "job_id":
        return st.sampled_from(UUIDS)
    return st.sampled_from(USUAL * 8 + IDS)


_CALLS = [route for route in ROUTES if isinstance(route, ReadRoute | WriteRoute)]
# Calls that create or delete objects are drawn more often.
_CALLS += [
    call
    for call in _CALLS
    if isinstance(call, WriteRoute) and unwrap_handler(call.handler) in CONTRACTS
] * 2


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    """Draw a request to any call without a stream or a WebSocket."""
    route = draw(st.sampled_from(_CALLS))
    method = draw(st.sampled_from(sorted(route.methods)))
    if draw(one_in(20)):
        method = draw(st.sampled_from(("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD")))
    contract = CONTRACTS.get(unwrap_handler(route.handler), EndpointSchema())
    path = route.path
    while "{" in path:
        name = path.partition("{")[2].partition("}")[0]
        safe = draw(st.sampled_from(("", "/")))
        path = path.replace(f"{{{name}}}", quote(draw(_parameter(name)), safe=safe), 1)
    query = draw(_queries(contract))
    body = draw(_bodies(contract)) if method not in ("GET", "HEAD") else None
    headers = draw(st.sampled_from(({}, {}, {"X-Nomad-Token": "x"}, {"Accept-Encoding": "gzip"})))
    return Asked(method, f"{path}?{urlencode(query)}" if query else path, body, headers)


_SENSIBLE = {
    ParameterType.TEXT: ("a", "web", "1", ""),
    ParameterType.FLAG: ("true", "false"),
    ParameterType.NUMBER: ("1", "2"),
}


@st.composite
def _queries(draw: st.DrawFn, contract: EndpointSchema) -> dict[str, str]:
    query = {
        name: draw(st.sampled_from(_SENSIBLE[kind]))
        for name, kind in contract.query.items()
        if draw(one_in(4))
    }
    if draw(one_in(10)):
        names = [*contract.query, "namespace", "region", "pretty", "stale", "index", "zzz"]
        query[draw(st.sampled_from(names))] = draw(st.sampled_from((*TEXTS, "maybe")))
    if draw(one_in(10)):
        query["index"] = "1"
    return {**query, "wait": "1ms"} if "index" in query else query


def _bodies(contract: EndpointSchema) -> st.SearchStrategy[bytes]:
    raw = st.sampled_from(BODIES)
    name = getattr(contract.takes, "__name__", "")
    if name not in TYPES:
        return st.one_of(st.just(b"{}"), raw)
    described = values({"$ref": f"#/{name}"}).map(_encoded)
    return st.integers(0, 9).flatmap(lambda drawn: raw if drawn == 0 else described)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, default=str).encode()
