"""Failed-login protection: count the forged and unknown credentials of each party and role.

A party is an address of another host, or a user of this host. All users of this host have the same
address, so the daemon counts their failures for each user. Callers record a failure only after
they have checked the credential. So a valid credential always passes, even if many clients share an
address.

There are two limits. The rate limit applies to every party. The lockout applies to addresses of
other hosts: after too many failures within a period, further failures are refused for the same
period. No I/O.
"""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address, ip_network

import msgspec

from storage.records.base import SECOND

AT_ONCE = 300  # failures before an address is rejected; even a misconfigured client causes some
REGAINED = SECOND // 5  # nanoseconds until one more failure is allowed
MOST = 10_000  # pairs of address and role; the least recently seen pair is dropped
_OWN_NETWORK = 64  # prefix length of the IPv6 network that counts as one client


class LockoutPolicy(msgspec.Struct, frozen=True):
    """The lockout: after `threshold` failures within `span`, an address is locked out for `span`.

    A threshold of 0 turns the lockout off.
    """

    threshold: int = 0
    span: int = 0  # nanoseconds


class _Record(msgspec.Struct):
    """The failures of one address for one role."""

    forgiven: int = 0  # time at which the rate limit has recovered completely
    count: int = 0  # failures within the current span
    since: int = 0  # start of the span
    locked_until: int = 0


class FailedLogins:
    """Failed logins by address and role. For a request with an unknown token, the role is empty."""

    def __init__(self, lock_out: LockoutPolicy = LockoutPolicy()) -> None:  # noqa: B008  # frozen
        self.lock_out = lock_out
        self._records: OrderedDict[tuple[str, str], _Record] = OrderedDict()

    def locked_for(self, address: str, now: int, role: str = "") -> int:
        """Return the remaining time of the lockout in nanoseconds; 0 if there is no lockout."""
        record = self._records.get((_client_key(address), role))
        return max(record.locked_until - now, 0) if record else 0

    def are_too_many(self, address: str, now: int, role: str = "") -> bool:
        """Record a failure; return whether it exceeds the rate limit or occurs in a lockout."""
        key = (_client_key(address), role)
        record = self._records.pop(key, None) or _Record()
        self._records[key] = record  # keeps the order of last use
        if len(self._records) > MOST:
            self._records.popitem(last=False)
        if now < record.locked_until:
            return True
        if self.lock_out.threshold and not _is_here(address):
            self._count(record, now)
        forgiven = max(record.forgiven, now) + REGAINED
        too_many = forgiven > now + AT_ONCE * REGAINED
        if not too_many:
            record.forgiven = forgiven
        return too_many

    def _count(self, record: _Record, now: int) -> None:
        """Count a failure for the lockout."""
        if now >= record.since + self.lock_out.span:
            record.count, record.since = 0, now
        record.count += 1
        if record.count >= self.lock_out.threshold:
            record.count, record.locked_until = 0, now + self.lock_out.span


def _client_key(address: str) -> str:
    """Return the key of a client: its address, or the /64 network of an IPv6 address."""
    try:
        parsed_address = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed_address, IPv6Address) and parsed_address.ipv4_mapped is None:
        return str(ip_network((parsed_address, _OWN_NETWORK), strict=False))
    return address


def _is_here(address: str) -> bool:
    """Return whether a client is on the host: `address` is a loopback address, or no IP address."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return True
