"""Whole numbers of any length."""

import pytest

from storage.records.numbers import parse_integer, shorten


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("-0", 0), ("007", 7), ("+12", 12), ("-12", -12), ("0" * 5000 + "1", 1)],
)
def test_a_number_is_read(text: str, number: int) -> None:
    assert parse_integer(text) == number


def test_number_with_too_many_digits_is_out_of_every_range() -> None:
    assert parse_integer("9" * 5000) > 2**64
    assert parse_integer("-" + "1" * 5000) < -(2**64)


@pytest.mark.parametrize("text", ["", "-", "x", "1x", "0x1"])
def test_text_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse_integer(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("42", "42"), ("-" + "1" * 100, "-1111111111111111111... (100 digits)")],
)
def test_long_number_is_truncated(text: str, shown: str) -> None:
    assert shorten(text) == shown
