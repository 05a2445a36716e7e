"""The head of a request: headers, path, namespace and token."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

import msgspec

from daemon.web.listeners import PeerAddress
from daemon.web.request import SHORT_BODY
from daemon.web.vault_api import VaultApi

_NOMAD_FIRST = ("x-nomad-token", "x-vault-token")
_VAULT_FIRST = ("x-vault-token", "x-nomad-token")
_FORWARDED = "x-forwarded-for"  # each proxy appends an address; only the last ones can be trusted
_AUTHORIZATION, _BEARER = "authorization", "Bearer"
# Separators of repeated headers whose values all count; no value contains them.
_BETWEEN = {_FORWARDED: ", ", _AUTHORIZATION: "\n"}
_LENGTH = re.compile("[0-9]{1,15}", re.ASCII)


class RequestHead(msgspec.Struct, frozen=True, kw_only=True):
    """A request without its body, from the HTTP server or the fast path.

    `target` is the raw path and `query` the raw query. Names in `headers` are in lower case. For a
    repeated header the first value counts, as in Nomad and Vault. Values of `X-Forwarded-For` and
    `authorization` are all kept in order. `client` is the connected address, empty for a Unix
    socket.
    """

    method: str
    target: bytes
    query: str
    headers: Mapping[str, str]
    client: str = ""
    peer: PeerAddress | None = None
    user: str = ""  # the owner of the connection (`admission.py`)
    is_secure: bool = False


def has_long_body(head: RequestHead) -> bool:
    """Return whether a body may exceed `SHORT_BODY`. An unknown length counts as long."""
    if "transfer-encoding" in head.headers:
        return True
    length = head.headers.get("content-length", "0")
    return not _LENGTH.fullmatch(length) or int(length) > SHORT_BODY


def headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers as received: the framework would add a missing host."""
    values_by_name: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name in values_by_name and name in _BETWEEN:
            values_by_name[name] += _BETWEEN[name] + value
        values_by_name.setdefault(name, value)
    return values_by_name


def path(target: bytes) -> str:
    """Return the decoded path; %2F is decoded too, because identifiers contain slashes."""
    return unquote((target or b"/").decode("latin-1"), encoding="utf-8", errors="replace")


def escaped_path(target: bytes) -> str:
    """Return the path as the client escaped it, in ASCII: %2F is a slash of an identifier.

    >>> escaped_path(b"/ui/job/a%2Frun"), escaped_path("/ui/job/\u00fc".encode())
    ('/ui/job/a%2Frun', '/ui/job/%C3%BC')
    """
    return quote(target or b"/", safe="/%:@!$&'()*+,;=~")


def clean_path(path: str) -> str:
    """Return a path without double slashes and dot segments."""
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            segments[-1:] = []
        elif segment not in ("", "."):
            segments.append(segment)
    slash = "/" if segments and path.endswith("/") else ""
    return "/" + "/".join(segments) + slash


def namespace(headers: Mapping[str, str], path: str) -> str:
    """Return the namespace in a header; empty for the Vault API, which reads the header itself."""
    if VaultApi.serves(path):
        return ""
    return headers.get("x-service-namespace") or headers.get("x-nomad-namespace", "")


def token(headers: Mapping[str, str], path: str) -> str:
    """Return the token's secret: from its own header, else from a bearer header.

    If a request has the headers of both APIs, that of the requested API counts. The Vault API
    accepts only one spelling of `Bearer` (source: Vault's recorded responses `auth-headers`).
    """
    is_vault = VaultApi.serves(path)
    of_api = _VAULT_FIRST if is_vault else _NOMAD_FIRST
    for name in ("x-service-token", *of_api):
        if secret := headers.get(name, "").strip():
            return secret
    words = headers.get(_AUTHORIZATION, "").split(_BETWEEN[_AUTHORIZATION])
    # Vault searches all of these headers for a bearer, Nomad only the first
    if is_vault:
        return next((secret for scheme, secret in map(_credential, words) if scheme == _BEARER), "")
    scheme, secret = _credential(words[0])
    return secret if scheme.lower() == _BEARER.lower() else ""


def _credential(value: str) -> tuple[str, str]:
    scheme, _, secret = value.partition(" ")
    return scheme, secret.strip()


def accepts_gzip(headers: Mapping[str, str]) -> bool:
    """Return whether a client accepts gzip: the header names gzip, with a weight above 0."""
    if "accept-encoding" not in headers:
        return False
    for coding in headers["accept-encoding"].lower().split(","):
        name, *parameters = (part.strip() for part in coding.split(";"))
        if name == "gzip":
            weights = [part.partition("=")[2] for part in parameters if part.startswith("q")]
            return all(weight.strip(" 0.") for weight in weights)
    return False
