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
    is how long ago that was. A period replaces what is wanted. Each limit caps the period, but
    only the explicit one, which stands first, ends a periodic token.
    """
    most = min((limit for limit in limits if limit), default=0)
    if period:
        capped = min(period, most or period)
        left = max(min(capped, limits[0] - elapsed), 0) if limits[0] else capped
        return Lease(left, (_capped("period", period, most),) if capped < period else ())
    if not most or wanted <= most - elapsed:
        return Lease(wanted)
    return Lease(max(most - elapsed, 0), (_capped("TTL", wanted, most),))


def _capped(name: str, wanted: int, most: int) -> str:
    return (
        f'{name} of "{short(wanted)}" exceeded the effective max_ttl of "{short(most)}"; '
        f"{name} value is capped accordingly"
    )


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
