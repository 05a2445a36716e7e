"""The most expensive request of each route, for `bench/stall.py` and the tests of stalls.

All read routes get the same query parameters. `STREAMS` has the query parameters of the routes that
stream their response.
"""

from collections.abc import Iterator, Mapping
from urllib.parse import quote, urlencode

import msgspec

from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.ui.routes import PAGES
from daemon.web.request import Endpoint, Operation, ReadRoute, StreamRoute
from daemon.web.ui_session import UiPage

# Query parameters that make a list read as many rows as possible.
QUERIES: tuple[Mapping[str, object], ...] = (
    {},
    {"per_page": 20, "namespace": "*"},
    {"per_page": 20, "reverse": "true", "prefix": "00"},
    {"filter": 'Name == "nobody" and Name != "x"', "namespace": "*"},
    {"filter": 'ID matches "nobody$"', "per_page": 20, "namespace": "*"},  # evaluated for each row
    {"all": "true", "include_children": "true", "task_states": "true", "diffs": "true"},
)
OF_PAGES: tuple[Mapping[str, object], ...] = ({}, {"namespace": "*", "search": "dispatch"})
BODIES: Mapping[str, object] = {
    "/v1/search": {"Prefix": "0", "Context": "all"},
    "/v1/search/fuzzy": {"Text": "dispatch", "Context": "all"},
}
WIDE = "wide"  # a job with as many allocations as all other jobs together
# Routes that stream their response, each with its query parameters.
STREAMS: Mapping[str, Mapping[str, object]] = {
    "/v1/job/{job_id}/logs": {"type": "stdout"},
    "/v1/job/{job_id}/logs/lines": {},
    "/v1/job/{job_id}/logs/search": {"contains": "x"},
    "/v1/client/allocation/{alloc_id}/stats": {},
    "/v1/client/allocation/{alloc_id}/checks": {},
    "/v1/client/allocation/{anything}": {},
    "/v1/node/{node_id}/history": {"from": "30d"},
    "/v1/job/{job_id}/history": {"from": "30d"},
    "/v1/allocation/{alloc_id}/history": {"from": "30d"},
    "/v1/client/usage": {},
    "/v1/client/stats": {},
    "/v1/client/fs/logs/{alloc_id}": {"task": "main", "type": "stdout"},
    "/v1/client/fs/lines/{alloc_id}": {"task": "main"},
    "/v1/client/fs/search/{alloc_id}": {"task": "main", "contains": "x"},
    "/v1/client/fs/ls/{alloc_id}": {"path": "/"},
    "/v1/client/fs/stat/{alloc_id}": {"path": "/"},
    "/v1/client/fs/cat/{alloc_id}": {"path": "/x"},
    "/v1/client/fs/readat/{alloc_id}": {"path": "/x", "offset": 0, "limit": 1},
    "/v1/client/fs/stream/{alloc_id}": {"path": "/x", "offset": 0},
    "/v1/client/fs/{anything}": {},
    "/v1/event/stream": {"index": 1, "namespace": "*"},
    "/v1/metrics": {"format": "prometheus"},
    "/v1/agent/pprof/cmdline": {},
    "/v1/agent/pprof/{profile}": {},
    "/v1/agent/monitor": {"log_level": "trace"},
    "/v1/operator/confinement": {},
    "/v1/agent/host": {},
}
METHODS = {Operation.READ: "GET", Operation.LIST: "LIST"}


class Asked(msgspec.Struct, frozen=True):
    """A request for one route. `row` is the method and path of the route in the route table."""

    row: str
    method: str
    path: str  # with placeholders in braces
    query: Mapping[str, object] = {}
    body: object = None  # bytes are sent unchanged, other values as JSON

    @property
    def content(self) -> bytes:
        """Return the body as bytes."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body or b""
        return msgspec.json.encode(self.body)

    def target(self, names: Mapping[str, str]) -> tuple[str, str]:
        """Return the path and the query, with the placeholders replaced."""
        parts = self.path.replace("{", "}").split("}")
        parts[1::2] = [quote(names.get(name, "default"), safe="") for name in parts[1::2]]
        return "".join(parts), urlencode({name: str(value) for name, value in self.query.items()})


def reads() -> Iterator[Asked]:
    """Yield the requests to the read routes of both APIs and the UI."""
    for route in ROUTES:
        if isinstance(route, ReadRoute):
            yield from _of_read(route, {})
            if "{job_id}" in route.path:
                yield from _of_read(route, {"job_id": WIDE})
    for endpoint in ENDPOINTS:
        yield from _of_endpoint(endpoint)
    for page in PAGES:
        if page.method == "GET":
            yield from _of_page(page)
            if "{job_id}" in page.path:
                yield Asked(f"GET {page.path}", "GET", page.path.replace("{job_id}", WIDE))


def streams() -> Iterator[Asked]:
    """Yield the requests to the routes that stream their response."""
    for path, query in STREAMS.items():
        yield Asked(f"GET {path}", "GET", path, query)
        if "{job_id}" in path:
            yield Asked(f"GET {path}", "GET", path.replace("{job_id}", WIDE), query)


def _of_read(route: ReadRoute, names: Mapping[str, str]) -> Iterator[Asked]:
    path = route.path
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", value)
    method = "POST" if "GET" not in route.methods else "GET"
    # Routes of a single object do not accept `namespace=*`.
    hidden = {"namespace"} if "{" in route.path else set()
    for query_case in QUERIES:
        query = {name: value for name, value in query_case.items() if name not in hidden}
        yield Asked(f"GET {route.path}", method, path, query, BODIES.get(route.path))


def _of_endpoint(endpoint: Endpoint) -> Iterator[Asked]:
    for operation in (Operation.READ, Operation.LIST):
        if endpoint.handler(operation):
            method = METHODS[operation]
            yield Asked(f"{method} {endpoint.path}", method, endpoint.path)


def _of_page(page: UiPage) -> Iterator[Asked]:
    for query in OF_PAGES:
        yield Asked(f"GET {page.path}", "GET", page.path, query)


def rows() -> Iterator[str]:
    """Yield the method and path of every read route."""
    for route in ROUTES:
        if isinstance(route, ReadRoute | StreamRoute):
            yield f"GET {route.path}"
    for endpoint in ENDPOINTS:
        for operation in (Operation.READ, Operation.LIST):
            if endpoint.handler(operation):
                yield f"{METHODS[operation]} {endpoint.path}"
    for page in PAGES:
        if page.method == "GET":
            yield f"GET {page.path}"
