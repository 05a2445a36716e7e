"""UI texts: words for states, times and sizes; valid URLs and filters."""

import pytest

from daemon.ui import formatting
from storage.records.base import HOUR, MINUTE, SECOND
from tests.samples import NOW


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (25 * 2**30, "25 GiB")]
)
def test_size_has_a_suitable_unit(count: int, text: str) -> None:
    assert formatting.format_size(count) == text


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "0 s"),
        (59 * SECOND, "59 s"),
        (61 * SECOND, "1 min 1 s"),
        (HOUR, "1 h"),
        (24 * HOUR + 5 * MINUTE, "1 d"),
        (50 * HOUR, "2 d 2 h"),
    ],
)
def test_duration_is_shown_in_two_units(length: int, text: str) -> None:
    assert formatting.format_duration(length) == text


@pytest.mark.parametrize(
    ("then", "text"),
    [(0, "-"), (NOW, "now"), (NOW - MINUTE, "1 min ago"), (NOW + MINUTE, "in 1 min")],
)
def test_time_is_shown_relative_to_now(then: int, text: str) -> None:
    assert formatting.relative_time(NOW, then) == text


def test_name_in_an_address_is_escaped() -> None:
    found = formatting.address("/ui/job/", "a/b?c#d", "/stop", namespace="n&m", empty="")
    assert found == "/ui/job/a%2Fb%3Fc%23d/stop?namespace=n%26m"


def test_command_is_quoted_for_a_shell() -> None:
    assert formatting.command("job", "stop", "a; rm -rf /", "") == "steward job stop 'a; rm -rf /'"


@pytest.mark.parametrize(
    ("target", "ours"),
    [
        ("/ui/jobs?x=1", True),
        ("//evil", False),
        ("https://evil/ui/", False),
        ("/ui/\\evil", False),
        ("/ui/\n", False),
        ("/ui/ü", False),
        ("", False),
    ],
)
def test_only_internal_pages_are_redirect_targets(target: str, ours: bool) -> None:
    assert formatting.is_internal_url(target) == ours
