"""The head of a request: its headers, where it leads, in which namespace, and what it shows."""

from collections.abc import Mapping
from typing import cast
from urllib.parse import unquote

from hypercorn.typing import HTTPScope, Scope, WebsocketScope
from quart import Request as FrameworkRequest

from daemon.web.connections import PEER
from daemon.web.listeners import Peer
from daemon.web.secrets_side import SecretsSide


def headers(scope: HTTPScope | WebsocketScope) -> dict[str, str]:
    """Return the headers as they came: the framework adds a host where the client names none."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def peer(scope: Scope) -> Peer | None:
    """Return who is known by the socket of the machine that he came through."""
    return cast("Peer | None", scope.get(PEER))


def path(request: FrameworkRequest) -> str:
    """Return the path with its percent signs resolved, %2F as well: identifiers hold slashes."""
    raw: bytes = request.scope.get("raw_path", b"") or request.path.encode()
    return unquote(raw.partition(b"?")[0].decode("latin-1"), encoding="utf-8", errors="replace")


def cleaned(path: str) -> str:
    """Return a path without doubled slashes and dots."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            kept[-1:] = []
        elif segment not in ("", "."):
            kept.append(segment)
    slash = "/" if kept and path.endswith("/") else ""
    return "/" + "/".join(kept) + slash


def namespace(headers: Mapping[str, str], path: str) -> str:
    """Return the namespace that a header names; on the secrets side it means something else."""
    if SecretsSide.serves(path):
        return ""
    return headers.get("x-service-namespace") or headers.get("x-nomad-namespace", "")


def token(headers: Mapping[str, str], path: str) -> str:
    """Return the secret of the caller's token: of its own header, else of a bearer.

    The secrets side takes the word for a bearer in one case only (golden: auth-headers).
    """
    for name in ("x-service-token", "x-nomad-token", "x-vault-token"):
        if secret := headers.get(name, "").strip():
            return secret
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    is_bearer = scheme == "Bearer" if SecretsSide.serves(path) else scheme.lower() == "bearer"
    return secret.strip() if is_bearer else ""
