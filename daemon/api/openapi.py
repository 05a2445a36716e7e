"""OpenAPI 3.1 description of the API, generated from the tables of routes."""

import inspect
import re
from collections.abc import Iterable, Mapping

import msgspec

from daemon.api.contract import CONTRACTS, EndpointSchema, ParameterType
from daemon.api.plan import JobPlanRequest
from daemon.jobs.register import JobRegisterRequest
from daemon.web.lazy import unwrap_handler
from daemon.web.request import Endpoint, ReadRoute, Route
from storage.records.codec import Document
from storage.records.job import SubmittedJob

_HOLD_A_JOB = (JobRegisterRequest, JobPlanRequest)  # the job of a validation may have any type
_SCHEMAS = "#/components/schemas/"
_BRACES = re.compile(r"\{(\w+)\}")
_NO_WORD = re.compile(r"[^a-z0-9]+")
# Sources in docstrings are for developers.
_SOURCE = re.compile(r" \((?:source|spec): [^)]*\)|\n\n *Source: [^.\n]*\.")

_ABOUT = (
    "Names match in any case, unknown names are ignored, and null means absent. PUT is accepted "
    "wherever POST is. Errors are plain text; under /v1/sys, /v1/auth and /v1/identity an object "
    "with a list of errors."
)
_EVERYWHERE = {
    "namespace": ParameterType.TEXT,
    "region": ParameterType.TEXT,
    "pretty": ParameterType.TEXT,
}
_READING = {"stale": ParameterType.TEXT}
_BLOCKING = {"index": ParameterType.NUMBER, "wait": ParameterType.TEXT}


def describe(routes: Iterable[Route], endpoints: Iterable[Endpoint], version: str) -> Document:
    """Return the description of the routes in these tables."""
    types = _Types()
    paths: dict[str, Document] = {}
    for route in routes:
        for method in sorted(route.methods):
            paths.setdefault(route.path, {})[method.lower()] = _operation(route, method, types)
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {}).update(_operations(endpoint))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Steward", "version": version, "description": _ABOUT},
        "paths": paths,
        "components": {"schemas": types.components},
    }


class _Types:
    """The schemas of all types in the table of contracts."""

    def __init__(self) -> None:
        contracts = CONTRACTS.values()
        kinds = [
            body for contract in contracts for body in (contract.takes, contract.gives) if body
        ]
        schemas, self.components = msgspec.json.schema_components(
            [SubmittedJob, *kinds],
            schema_hook=lambda _: {"description": "any JSON value"},
            ref_template=_SCHEMAS + "{name}",
        )
        self._schemas = dict(zip(map(repr, kinds), schemas[1:], strict=True))
        # The codec validates the job of a request against this record, without decoding it.
        job = {"anyOf": [{"$ref": f"{_SCHEMAS}SubmittedJob"}, {"type": "null"}]}
        for record in _HOLD_A_JOB:
            self.components[record.__name__]["properties"]["Job"] = job

    def content(self, kind: object, *, is_lines: bool = False) -> Document:
        """Return the content of a body of this type, or of a body with lines of this type."""
        media = "application/x-ndjson" if is_lines else "application/json"
        return {media: {"schema": self._schemas[repr(kind)]}}


# --- the jobs API ---


def _operation(route: Route, method: str, types: _Types) -> Document:
    handler = unwrap_handler(route.handler)
    contract = CONTRACTS.get(handler, EndpointSchema())
    query = {**contract.query, **_EVERYWHERE}
    if isinstance(route, ReadRoute):
        query |= {**_READING, **(_BLOCKING if route.watch else {})}
    operation: Document = {
        **_head(method, route.path, handler),
        "parameters": [*_path_parameters(route.path), *_query_parameters(query)],
        "responses": {
            "200": _answer(contract, types),
            "4XX": {"description": "A client error, in plain text."},
            "5XX": {"description": "A server error, in plain text."},
        },
    }
    if method != "GET" and contract.takes is not None:
        operation["requestBody"] = {
            "required": contract.needs_body,
            "content": types.content(contract.takes, is_lines=contract.is_lines),
        }
    return operation


def _head(method: str, path: str, handler: object) -> Document:
    """Return the fields that every operation has."""
    summary = (inspect.getdoc(handler) or "").partition("\n")[0]
    return {
        "summary": _SOURCE.sub("", summary),
        "operationId": f"{method.lower()}{_NO_WORD.sub('_', path)}".rstrip("_"),
        "tags": [path.split("/")[2]],  # `job` of `/v1/job/{job_id}/plan`
    }


def _answer(contract: EndpointSchema, types: _Types) -> Document:
    answer: Document = {"description": "The request succeeded."}
    if contract.gives is not None:
        answer["content"] = types.content(contract.gives, is_lines=contract.is_lines)
    return answer


def _path_parameters(path: str) -> list[Document]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _BRACES.findall(path)
    ]


def _query_parameters(query: Mapping[str, ParameterType]) -> list[Document]:
    return [
        {"name": name, "in": "query", "schema": {"type": kind.value}}
        for name, kind in query.items()
    ]


# --- the Vault API ---


def _operations(endpoint: Endpoint) -> dict[str, Document]:
    """Return the operations by HTTP method; Vault's LIST is a GET with a parameter."""
    handlers = {
        "GET": endpoint.read or endpoint.list,
        "POST": endpoint.write,
        "DELETE": endpoint.delete,
    }
    return {
        method.lower(): {
            **_head(method, endpoint.path, unwrap_handler(handler)),
            "parameters": _path_parameters(endpoint.path),
            "responses": {
                "2XX": {"description": "The request succeeded."},
                "4XX": {"description": "A client error, as a list of errors."},
            },
        }
        for method, handler in handlers.items()
        if handler is not None
    }
