"""Validate a group's `dns` block, whose values are written to resolv.conf. No I/O.

The check runs at registration. It runs again when the file is written, because references such as
`${meta.zone}` have no values before.
"""

import re
from collections.abc import Iterator
from ipaddress import ip_address

from storage.records.task import NetworkDNS

_ZONE = re.compile(
    r"[A-Za-z0-9_.-]+"
)  # the interface of a link-local address, after a percent sign
_NAME = re.compile(r"\.|(?!.{254})[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_-]{1,63})*\.?")
_OPTION = re.compile(r"[a-z0-9:-]{1,64}")
_REFERENCE = "${"


def faults(dns: NetworkDNS, *, filled: bool) -> Iterator[str]:
    """Yield each error of a block.

    `filled` is true if references were replaced. Otherwise, texts with references are not checked.
    """
    for field, texts, fits, fix in (
        ("server", dns.servers, _is_address, "use an IP address"),
        ("search", dns.searches, _is_name, "use a domain name"),
        ("option", dns.options, _is_option, "use lower-case letters, digits, ':' and '-'"),
    ):
        for text in texts or ():
            if not fits(text) and (filled or _REFERENCE not in text):
                yield f"DNS {field} {_shown(text)} is not valid: {fix}"


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 64 else f"{text[:61]}...")


def _is_address(text: str) -> bool:
    address, percent, zone = text.partition("%")
    if percent and not _ZONE.fullmatch(zone):
        return False
    try:
        ip_address(address)
    except ValueError:
        return False
    return True


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _is_option(text: str) -> bool:
    return _OPTION.fullmatch(text) is not None
