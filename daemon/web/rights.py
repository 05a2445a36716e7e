"""What right a request needs, by the tables that answer requests."""

from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from daemon.acl.check import Asks, Needs
from daemon.acl.explain import Right
from daemon.web.endpoints import SIDES, Endpoints
from daemon.web.parameters import Query
from daemon.web.request import DEFAULT_NAMESPACE, Endpoint, Route
from daemon.web.router import Router
from storage.errors import NotFound

_OPEN = Needs(Asks.NOTHING)
_PATH = Needs(Asks.PATH)
_CAPABILITIES = {
    "GET": "read",
    "LIST": "list",
    "POST": "update",
    "PUT": "update",
    "DELETE": "delete",
    "CREATE": "create",  # no method: a write where there is nothing yet
}


class Rights:
    """The rights that all requests need."""

    def __init__(self, routes: Iterable[Route], endpoints: Iterable[Endpoint]) -> None:
        self._router = Router(routes)
        endpoints = tuple(endpoints)
        self.endpoint_paths = [one.path for one in endpoints]
        self._endpoints = Endpoints(endpoints)

    def of(self, method: str, target: str, is_mount: Callable[[str], bool]) -> Right:
        """Return the right that a request needs; `target` may have a query. Raises `NotFound`."""
        parts = urlsplit(target)
        path, query = parts.path, Query(parts.query)
        if not path.startswith("/"):
            path = f"/v1/{path}"
        if path.startswith(SIDES):
            listing = method == "LIST" or query.flag("list")
            return self._at_path(path, "LIST" if listing else method, is_mount)
        routes, parameters = self._router.find(path)
        route = next((one for one in routes if method in one.methods), None)
        if route is None:
            raise NotFound(f"nothing answers {method} {path}")
        return Right(
            needs=route.needs,
            namespace=query.text("namespace") or DEFAULT_NAMESPACE,
            path=parameters.get("path", ""),
        )

    def _at_path(self, path: str, method: str, is_mount: Callable[[str], bool]) -> Right:
        name = path.removeprefix("/v1/")
        found = self._endpoints.find(name, is_mount)
        endpoint = found.endpoint if found else None
        if endpoint is not None and endpoint.is_open:
            return Right(needs=_OPEN, namespace="", path=name)
        if method not in _CAPABILITIES:
            raise NotFound(f"nothing answers {method} {path}")
        sudo = ("sudo",) if endpoint is not None and endpoint.sudo else ()
        return Right(
            needs=_PATH,
            namespace="",
            path=name,
            capabilities=(_CAPABILITIES[method], *sudo),
            is_listing=method == "LIST",
        )
