"""Rejection of cross-origin and DNS-rebinding requests.

The daemon runs commands for users, and a browser on the same host can reach its port. A malicious
page can point its own name at this host (DNS rebinding), which the `Host` header shows. It can also
send a cross-origin write, which `Origin` and `Sec-Fetch-Site` show. The same applies to the few
reads of Nomad's API that have an effect. Programs send neither `Origin` nor `Sec-Fetch-Site`, so
they are not affected.
"""

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from daemon.config.settings import Settings
from daemon.web.reply import HandlerReply, text

# Valid values of the header; others (`name:1@evil`) could be parsed in two ways.
_HOST = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[\w.-]+))(?::[0-9]{1,5})?", re.ASCII
)
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104  # compared, not bound


# A proxy may see another end of such a request than this server, and a second request could hide in
# the difference. So the rest of the connection is not read.
_UNCLEAR = HandlerReply(
    body=b"a request has a length or is chunked, not both",
    status=400,
    content_type="text/plain; charset=utf-8",
    headers={"Connection": "close"},
)


_ENCODINGS = frozenset({"", "identity"})  # of bodies of requests
_COMPRESSED = HandlerReply(
    body=b"the body has a Content-Encoding: send the body without compression",
    status=415,
    content_type="text/plain; charset=utf-8",
    headers={"Accept-Encoding": "identity"},
)

ANY_NAME = "*"  # for public documents only; the configuration cannot contain it


class RequestGuard:
    """A check of the host name and the origin of each request."""

    def __init__(self, config: Settings, host_name: str) -> None:
        named = (config.bind, host_name, *config.host_names)
        self._names = _LOOPBACK | {name.lower() for name in named}
        self._any_address = config.bind in _ANY_ADDRESS
        self._any_name = ANY_NAME in config.host_names

    def refusal(
        self, method: str, headers: Mapping[str, str], *, has_effect: bool = False
    ) -> HandlerReply | None:
        """Return the error response if a request must be rejected, or None.

        If `has_effect` is true, the request changes something even if its method is GET.
        """
        if "transfer-encoding" in headers and "content-length" in headers:
            return _UNCLEAR
        if headers.get("content-encoding", "").strip().lower() not in _ENCODINGS:
            return _COMPRESSED
        if method == "CONNECT":  # after a success, the connection would belong to a tunnel
            return text("Invalid method", 405)
        host = headers.get("host")
        if host is not None and not self._is_ours(name := _name_of(host)):
            return text(
                f"{name or host!r} is not a name of this daemon: use its address, or add the name "
                "to host_names in its configuration",
                421,
            )
        if method in _SAFE and not has_effect and not headers.get("upgrade"):
            return None
        origin = headers.get("origin", "")
        if origin and origin.partition("://")[2].lower() != (host or "").lower():
            return text(
                f"cross-origin request rejected: a page of {origin} cannot change data of Steward",
                403,
            )
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return text(
                "cross-site request rejected: a page of another site cannot change data of Steward",
                403,
            )
        return None

    def _is_ours(self, name: str | None) -> bool:
        if name is None:
            return False
        is_address = self._any_address and _is_address(name)
        return name in self._names or is_address or self._any_name


def _name_of(host: str) -> str | None:
    """Return the name in a `Host` header, without port and brackets; None if it is invalid."""
    match = _HOST.fullmatch(host)
    return (match["name"] or match["address"]).lower() if match else None


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class TrustedProxies:
    """The proxies whose `X-Forwarded-For` headers are trusted."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ip_network(network) for network in networks]

    def client(self, address: str, forwarded: str) -> str:
        """Return the address of the client: the nearest address that is not a trusted proxy.

        `address` is the other end of the connection, and `forwarded` the header `X-Forwarded-For`.
        The header is read from its end, and only as far as trusted proxies have added the addresses
        in it.
        """
        if not self._networks:
            return address
        hops = forwarded.split(",") if forwarded else []
        while self.has(address) and hops and (hop := _address(hops.pop())):
            address = str(hop)
        return address

    def has(self, address: str) -> bool:
        """Return whether an address is a trusted proxy."""
        parsed_address = _address(address)
        return parsed_address is not None and any(
            parsed_address in network for network in self._networks
        )


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address without its port; None if it is invalid."""
    bare = text.strip()
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        return ip_address(bare)
    except ValueError:
        return None
