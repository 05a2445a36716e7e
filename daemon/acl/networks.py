"""Addresses and networks from which a token can be used."""

from ipaddress import ip_network

from daemon.text.go_format import quote
from storage.errors import Invalid


def network(text: str) -> str:
    """Return a network in its display form: a single address has no mask. Raises `Invalid`."""
    try:
        ip_network(text, strict=False)
    except ValueError:
        raise Invalid(
            f"error parsing address {quote(text)}: Unable to convert {quote(text)} to an IPv4 or "
            "IPv6 address, or a UNIX Socket"
        ) from None
    return text.removesuffix("/128") if ":" in text else text.removesuffix("/32")
