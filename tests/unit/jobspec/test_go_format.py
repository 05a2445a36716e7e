"""Values as Go writes them."""

import pytest

from daemon.text.go_format import (
    duration,
    format_list,
    join_errors,
    multi_error,
    quote,
    uint_error,
    wrap_error,
)
from storage.records.base import HOUR, MINUTE, SECOND


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (999, "999ns"),
        (1_000, "1µs"),
        (1_100, "1.1µs"),
        (2_200_000, "2.2ms"),
        (300_000_000, "300ms"),
        (999_999_999, "999.999999ms"),
        (SECOND, "1s"),
        (SECOND + 500_000_000, "1.5s"),
        (59 * SECOND, "59s"),
        (MINUTE, "1m0s"),
        (90 * SECOND, "1m30s"),
        (HOUR, "1h0m0s"),
        (24 * HOUR, "24h0m0s"),
        (HOUR + SECOND + 1, "1h0m1.000000001s"),
        (-1, "-1ns"),
        (-90 * SECOND, "-1m30s"),
    ],
)
def test_duration_is_written_in_the_largest_exact_units(nanoseconds: int, text: str) -> None:
    assert duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("text", "quoted", "ascii_only"),
    [
        ("", '""', '""'),
        ("abc", '"abc"', '"abc"'),
        ('a"b\\c', r'"a\"b\\c"', r'"a\"b\\c"'),
        ("a\n\t\r\a\b\f\v", r'"a\n\t\r\a\b\f\v"', r'"a\n\t\r\a\b\f\v"'),
        ("\0\x7f", r'"\x00\x7f"', r'"\x00\x7f"'),
        ("é", '"é"', r'"\u00e9"'),
        ("\u00a0", r'"\u00a0"', r'"\u00a0"'),
        ("日", '"日"', r'"\u65e5"'),
        ("😀", '"😀"', r'"\U0001f600"'),
    ],
)
def test_quoted_text_escapes_unprintable_characters(
    text: str, quoted: str, ascii_only: str
) -> None:
    assert (quote(text), quote(text, ascii_only=True)) == (quoted, ascii_only)


@pytest.mark.parametrize(
    ("text", "base", "bits", "problem"),
    [
        ("0", 10, 64, None),
        ("18446744073709551615", 10, 64, None),
        ("18446744073709551616", 10, 64, "value out of range"),
        ("9" * 5000, 10, 64, "value out of range"),
        ("0644", 8, 12, None),
        ("7777", 8, 12, None),
        ("10000", 8, 12, "value out of range"),
        ("0000000000000644", 8, 12, None),
        ("999", 8, 12, "invalid syntax"),
        ("", 10, 64, "invalid syntax"),
        ("-1", 10, 64, "invalid syntax"),
        ("+1", 10, 64, "invalid syntax"),
        ("1_0", 10, 64, "invalid syntax"),
        ("\u0661", 10, 64, "invalid syntax"),
    ],
)
def test_unreadable_number_has_a_reason(
    text: str, base: int, bits: int, problem: str | None
) -> None:
    wanted = problem and f'strconv.ParseUint: parsing "{text}": {problem}'
    assert uint_error(text, base, bits) == wanted


def test_several_errors_become_one_text() -> None:
    assert multi_error(["a"]) == "1 error occurred:\n\t* a\n\n"
    assert multi_error(["a", "b\nc"]) == "2 errors occurred:\n\t* a\n\t* b\nc\n\n"
    assert multi_error([]) == ""


def test_errors_of_a_part_become_one_error_of_the_whole() -> None:
    assert list(wrap_error("Group x", ["a"])) == ["Group x: 1 error occurred:\n\t* a\n\n"]
    assert list(join_errors(["a", "b"])) == ["2 errors occurred:\n\t* a\n\t* b\n\n"]


def test_a_part_without_errors_adds_none() -> None:
    assert [*wrap_error("Group x", []), *join_errors([])] == []


def test_a_list_is_written_in_brackets_with_spaces() -> None:
    assert (format_list(["a", "b"]), format_list([])) == ("[a b]", "[]")
