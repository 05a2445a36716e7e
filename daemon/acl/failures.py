"""Failed-login protection: count the forged and unknown credentials of each address and role.

Callers note a failure only after they have checked the credential. So a request with a valid
credential always passes, because many clients can share one address. Two limits apply. The rate
limit counts for every address. The lockout counts for addresses of other hosts: after too many
failures within a span, all further failures are refused for as long. No I/O.
"""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address, ip_network

import msgspec

from storage.records.base import SECOND

AT_ONCE = 300  # failures before an address is turned away; a misconfigured client makes some
REGAINED = SECOND // 5  # nanoseconds after which one more is allowed
MOST = 10_000  # pairs of address and role; the longest unseen is forgotten
_OWN_NETWORK = 64  # bits: so much of an address of the sixth version one party has for itself


class LockOut(msgspec.Struct, frozen=True):
    """How many failures within a span lock an address out, and for how long; 0: none do."""

    threshold: int = 0
    span: int = 0  # nanoseconds


class _Record(msgspec.Struct):
    """The failures of one address at one role."""

    forgiven: int = 0  # when all of its failures are forgiven, as far as the rate goes
    count: int = 0  # of failures within the present span
    since: int = 0  # when that began
    locked_until: int = 0


class Failures:
    """The failures of each address and role; the role is empty where a token is shown."""

    def __init__(self, lock_out: LockOut = LockOut()) -> None:  # noqa: B008  # frozen
        self.lock_out = lock_out
        self._records: OrderedDict[tuple[str, str], _Record] = OrderedDict()

    def locked_for(self, address: str, now: int, role: str = "") -> int:
        """Return for how many nanoseconds more the lockout lasts."""
        record = self._records.get((_party(address), role))
        return max(record.locked_until - now, 0) if record else 0

    def are_too_many(self, address: str, now: int, role: str = "") -> bool:
        """Note one more failure; return whether there were too many before it."""
        key = (_party(address), role)
        record = self._records.pop(key, None) or _Record()
        self._records[key] = record  # the last seen comes last
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
        """Count a failure for the lock-out."""
        if now >= record.since + self.lock_out.span:
            record.count, record.since = 0, now
        record.count += 1
        if record.count >= self.lock_out.threshold:
            record.count, record.locked_until = 0, now + self.lock_out.span


def _party(address: str) -> str:
    """Return whom an address stands for: one party can have many of the sixth version."""
    try:
        known = ip_address(address)
    except ValueError:
        return address
    if isinstance(known, IPv6Address) and known.ipv4_mapped is None:
        return str(ip_network((known, _OWN_NETWORK), strict=False))
    return address


def _is_here(address: str) -> bool:
    """Tell whether an address is this machine's own, or there is none: a socket of the machine."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return True
