import pytest

from daemon.cli.core import formatting
from storage.records.base import HOUR, MINUTE, SECOND
from tests.samples import NOW

DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (0, "0s"),
        (-SECOND, "0s"),
        (SECOND - 1, "0s"),
        (59 * SECOND, "59s"),
        (MINUTE, "1m"),
        (61 * SECOND, "1m1s"),
        (HOUR + 2 * MINUTE + 3 * SECOND, "1h2m"),
        (HOUR + 3 * SECOND, "1h"),
        (3 * DAY + 5 * HOUR, "3d5h"),
    ],
)
def test_duration_is_shown_in_its_two_largest_units(length: int, words: str) -> None:
    assert formatting.format_duration(length) == words


def test_time_is_shown_to_the_second() -> None:
    assert formatting.format_time(NOW + 5) == "2026-11-21T01:40:00Z"


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (None, "N/A"),
        ("", "N/A"),
        ("0001-01-01T00:00:00Z", "N/A"),
        ("2026-11-21T01:40:00.25Z", "2026-11-21T01:40:00Z"),
    ],
)
def test_zero_time_of_the_api_is_not_available(wire: str, words: str) -> None:
    assert formatting.format_api_time(wire) == words


def test_relative_time_is_shown_for_past_events() -> None:
    assert [formatting.relative_time(NOW - MINUTE, NOW), formatting.relative_time(0, NOW)] == [
        "1m ago",
        "N/A",
    ]


def test_columns_are_aligned_without_trailing_spaces() -> None:
    assert formatting.columns([["ID", "Status"], ["a-long-one", "running"], ["b", ""]]) == [
        "ID          Status",
        "a-long-one  running",
        "b",
    ]


def test_equal_signs_of_key_value_lines_are_aligned() -> None:
    assert formatting.key_value_lines([("ID", "web"), ("Node Pool", "")]) == [
        "ID        = web",
        "Node Pool = <none>",
    ]


def test_full_identifiers_are_shown_only_on_request() -> None:
    identifier = "6ff3f0a1-7d6e-4bd5-8a0b-0d6c34b4a1f2"
    assert formatting.short(identifier) == "6ff3f0a1"
    assert formatting.short(identifier, verbose=True) == identifier
