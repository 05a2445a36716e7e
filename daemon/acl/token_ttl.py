"""TTLs of tokens, with warnings about reductions. Values are in seconds."""

import msgspec

_HOUR, _MINUTE = 3600, 60


class TokenLifetime(msgspec.Struct, frozen=True):
    """The TTL of a token, and warnings for the caller."""

    ttl: int
    warnings: tuple[str, ...] = ()


def compute_ttl(ttl: int, period: int, limits: tuple[int, ...], elapsed: int = 0) -> TokenLifetime:
    """Return the TTL of a token from now on.

    `elapsed` is the age of the token. `limits` are maximum ages; 0 means no limit. Without a
    period, the token's TTL ends at the smallest limit at the latest.

    A period replaces the requested TTL, but is at most the smallest limit. Renewals can extend a
    token with a period beyond all limits except the first, which is its explicit maximum TTL.
    """
    most = min((limit for limit in limits if limit), default=0)
    if period:
        capped = min(period, most or period)
        left = max(min(capped, limits[0] - elapsed), 0) if limits[0] else capped
        return TokenLifetime(left, (_capped("period", period, most),) if capped < period else ())
    if not most or ttl <= most - elapsed:
        return TokenLifetime(ttl)
    return TokenLifetime(max(most - elapsed, 0), (_capped("TTL", ttl, most),))


def _capped(name: str, ttl: int, most: int) -> str:
    return (
        f'{name} of "{format_ttl(ttl)}" exceeded the effective max_ttl of "{format_ttl(most)}"; '
        f"{name} value is capped accordingly"
    )


def format_ttl(seconds: int) -> str:
    """Format a duration without empty units.

    >>> format_ttl(300), format_ttl(2764800), format_ttl(90)
    ('5m', '768h', '1m30s')
    """
    text = ""
    for size, unit in ((_HOUR, "h"), (_MINUTE, "m"), (1, "s")):
        count, seconds = divmod(seconds, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"
