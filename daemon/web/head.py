"""The head of a request: its headers, where it leads, in which namespace, and what it shows."""

from collections.abc import Iterable, Mapping
from urllib.parse import unquote

import msgspec

from daemon.web.listeners import Peer
from daemon.web.secrets_side import SecretsSide

_FORWARDED = "x-forwarded-for"  # each proxy adds an address; only the last ones can be trusted
_AUTHORIZATION, _BEARER = "authorization", "Bearer"
# What stands between the values of a header of which more than the first count; no value has it.
_BETWEEN = {_FORWARDED: ", ", _AUTHORIZATION: "\n"}


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A request before its body, through whichever door it came.

    `target` is the path as it was written, `query` what stands behind its question mark; the names
    of `headers` are in lower case, and of one that is repeated the first counts, as with the peers.
    Addresses of proxies and `authorization` are all kept, in their order. `client` is who has
    connected, empty when through a socket of the machine.
    """

    method: str
    target: bytes
    query: str
    headers: Mapping[str, str]
    client: str = ""
    peer: Peer | None = None
    is_secure: bool = False


def headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers as they came: the framework adds a host where the client names none."""
    found: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name in found and name in _BETWEEN:
            found[name] += _BETWEEN[name] + value
        found.setdefault(name, value)
    return found


def path(target: bytes) -> str:
    """Return the path with its percent signs resolved, %2F as well: identifiers hold slashes."""
    return unquote((target or b"/").decode("latin-1"), encoding="utf-8", errors="replace")


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
    given = headers.get(_AUTHORIZATION, "").split(_BETWEEN[_AUTHORIZATION])
    if SecretsSide.serves(path):  # Vault looks for a bearer among all of them, Nomad at the first
        return next((secret for scheme, secret in map(_credential, given) if scheme == _BEARER), "")
    scheme, secret = _credential(given[0])
    return secret if scheme.lower() == _BEARER.lower() else ""


def _credential(value: str) -> tuple[str, str]:
    scheme, _, secret = value.partition(" ")
    return scheme, secret.strip()
