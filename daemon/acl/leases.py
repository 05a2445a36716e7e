"""How long a token lives, and what its owner is told when that is less than was wanted. Seconds."""

import msgspec

_HOUR, _MINUTE = 3600, 60


class Lease(msgspec.Struct, frozen=True):
    """How long a token lives; and what the caller should know about it."""

    ttl: int
    warnings: tuple[str, ...] = ()


def lease(wanted: int, period: int, limits: tuple[int, ...], elapsed: int = 0) -> Lease:
    """Return how long a token lives from now on.

    It ends at the smallest of the limits, of which 0 is none, counted from its making; `elapsed`
    is how long ago that was. A period replaces what is wanted; of the limits only the explicit
    one, which stands first, ends a periodic token, and the mount's, which stands last, is the
    longest period.
    """
    if period:
        period = min(period, limits[-1] or period)
        return Lease(max(min(period, limits[0] - elapsed), 0) if limits[0] else period)
    most = min((limit for limit in limits if limit), default=0)
    if not most or wanted <= most - elapsed:
        return Lease(wanted)
    warning = (
        f'TTL of "{short(wanted)}" exceeded the effective max_ttl of "{short(most)}"; '
        "TTL value is capped accordingly"
    )
    return Lease(max(most - elapsed, 0), (warning,))


def short(seconds: int) -> str:
    """Return a span without its empty units.

    >>> short(300), short(2764800), short(90)
    ('5m', '768h', '1m30s')
    """
    text = ""
    for size, unit in ((_HOUR, "h"), (_MINUTE, "m"), (1, "s")):
        count, seconds = divmod(seconds, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"
