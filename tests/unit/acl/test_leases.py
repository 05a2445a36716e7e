"""The TTL of a token: it never exceeds the limits of the token."""

import pytest

from daemon.acl.token_ttl import TokenLifetime, compute_ttl, format_ttl


@pytest.mark.parametrize(
    ("wanted", "period", "limits", "elapsed", "ttl", "warned"),
    [
        (600, 0, (0, 0), 0, 600, False),
        (600, 0, (0, 3600), 0, 600, False),
        (600, 0, (300, 3600), 0, 300, True),
        (600, 0, (0, 3600), 3500, 100, True),
        (600, 0, (0, 3600), 4000, 0, True),
        (600, 90, (0, 60), 0, 60, True),
        (600, 90, (0, 60, 120), 0, 60, True),
        (600, 90, (60, 0), 0, 60, True),
        (600, 90, (600, 0), 550, 50, False),
        (600, 90, (0, 60), 3600, 60, True),
        (600, 90, (0, 120), 3600, 90, False),
    ],
)
def test_token_ttl_is_limited(
    wanted: int, period: int, limits: tuple[int, ...], elapsed: int, ttl: int, *, warned: bool
) -> None:
    token_lifetime = compute_ttl(wanted, period, limits, elapsed)
    assert token_lifetime.ttl == ttl
    assert bool(token_lifetime.warnings) is warned


def test_new_token_may_use_its_whole_limit() -> None:
    assert compute_ttl(300, 0, (0, 300)) == TokenLifetime(300)
    assert compute_ttl(600, 300, (300, 3600)) == TokenLifetime(300)


def test_warning_has_the_requested_ttl_and_the_limit() -> None:
    assert compute_ttl(36000, 0, (300,)).warnings == (
        'TTL of "10h" exceeded the effective max_ttl of "5m"; TTL value is capped accordingly',
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (3661, "1h1m1s"), (2764800, "768h")]
)
def test_duration_is_written_without_zero_units(seconds: int, text: str) -> None:
    assert format_ttl(seconds) == text
