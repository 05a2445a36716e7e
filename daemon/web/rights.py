"""The permission that a request needs, from the tables of routes."""

from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from daemon.acl.check import RequiredCapability, Requirement
from daemon.acl.explain import RequestedCapability
from daemon.web.parameters import QueryParameters
from daemon.web.request import DEFAULT_NAMESPACE, Endpoint, Route
from daemon.web.router import Router
from daemon.web.vault_router import SIDES, VaultRouter
from storage.errors import NotFound

_OPEN = RequiredCapability(Requirement.NOTHING)
_PATH = RequiredCapability(Requirement.PATH)
_CAPABILITIES = {
    "GET": "read",
    "LIST": "list",
    "POST": "update",
    "PUT": "update",
    "DELETE": "delete",
    "CREATE": "create",  # not a method: a write of a new object
}


class RouteRights:
    """The permission that each request needs."""

    def __init__(self, routes: Iterable[Route], endpoints: Iterable[Endpoint]) -> None:
        self._router = Router(routes)
        endpoints = tuple(endpoints)
        self.endpoint_paths = [endpoint.path for endpoint in endpoints]
        self._endpoints = VaultRouter(endpoints)

    def of(self, method: str, target: str, is_mount: Callable[[str], bool]) -> RequestedCapability:
        """Return the permission for a request; `target` may have a query. Raises `NotFound`."""
        parts = urlsplit(target)
        path, query = parts.path, QueryParameters(parts.query)
        if not path.startswith("/"):
            path = f"/v1/{path}"
        if path.startswith(SIDES):
            listing = method == "LIST" or query.flag("list")
            return self._at_path(path, "LIST" if listing else method, is_mount)
        routes, parameters = self._router.find(path)
        route = next((route for route in routes if method in route.methods), None)
        if route is None:
            raise NotFound(f"there is no route for {method} {path}")
        return RequestedCapability(
            needs=route.needs,
            namespace=query.text("namespace") or DEFAULT_NAMESPACE,
            path=parameters.get("path", ""),
        )

    def _at_path(
        self, path: str, method: str, is_mount: Callable[[str], bool]
    ) -> RequestedCapability:
        name = path.removeprefix("/v1/")
        match = self._endpoints.find(name, is_mount)
        endpoint = match.endpoint if match else None
        if endpoint is not None and endpoint.is_open:
            return RequestedCapability(needs=_OPEN, namespace="", path=name)
        if method not in _CAPABILITIES:
            raise NotFound(f"there is no route for {method} {path}")
        sudo = ("sudo",) if endpoint is not None and endpoint.sudo else ()
        return RequestedCapability(
            needs=_PATH,
            namespace="",
            path=name,
            capabilities=(_CAPABILITIES[method], *sudo),
            is_listing=method == "LIST",
        )
