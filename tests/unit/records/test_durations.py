import pytest

from storage.records import durations
from storage.records.base import HOUR, MINUTE, SECOND


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5µs"),
        (232_075_167, "232.075167ms"),
        (SECOND, "1s"),
        (4_470_000_000, "4.47s"),
        (MINUTE, "1m0s"),
        (90 * SECOND, "1m30s"),
        (24 * HOUR, "24h0m0s"),
        (-SECOND, "-1s"),
    ],
)
def test_duration_is_written_like_in_nomad(nanoseconds: int, text: str) -> None:
    assert durations.text(nanoseconds) == text


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("0", 0), ("250ms", SECOND // 4), ("1h30m", HOUR + 30 * MINUTE), ("1.5s", 3 * SECOND // 2)],
)
def test_duration_is_read(text: str, nanoseconds: int) -> None:
    assert durations.nanoseconds(text) == nanoseconds


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "1h x"])
def test_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        durations.nanoseconds(text)


def test_duration_beyond_the_maximum_is_refused() -> None:
    with pytest.raises(ValueError, match="is longer than 292 years"):
        durations.nanoseconds(f"{'9' * 5000}h")
