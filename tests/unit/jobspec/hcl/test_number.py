"""Numbers of 512 bits: the same values and the same texts as in Nomad."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.jobspec.hcl.number import (
    divide,
    from_float,
    number_text,
    read_number,
    remainder,
    rounded,
    to_json,
)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("0", "0"),
        ("007", "7"),
        ("1.50", "1.5"),
        ("1.0", "1"),
        ("1e10", "10000000000"),
        ("25e-2", "0.25"),
        ("1e-7", "0.0000001"),
        ("0.1", "0.1"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("9007199254740993", "9007199254740993"),
        ("1e200", "1" + "0" * 200),
        ("1.5e200", "15" + "0" * 199),
        ("99999.99999", "99999.99999"),
    ],
)
def test_number_is_written_in_its_shortest_form(written: str, text: str) -> None:
    assert number_text(read_number(written)) == text


def test_a_quotient_has_512_bits() -> None:
    assert number_text(divide(1, 3)) == "0." + "3" * 154 + "5"
    assert divide(10, 5) == 2
    assert rounded(divide(1, 3) * 3) == 1


@pytest.mark.parametrize(
    ("left", "right", "rest"),
    [(7, 3, 1), (-7, 3, -1), (7, -3, 1), (Fraction(11, 2), 2, Fraction(3, 2)), (5, 0, 5)],
)
def test_a_remainder_has_the_sign_of_the_left_side(left, right, rest) -> None:
    assert remainder(left, right) == rest


@pytest.mark.parametrize("written", ["1e2000", "1e-2000", "9" * 2000])
def test_number_out_of_range_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="at most 1024"):
        read_number(written)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_infinite_value_is_no_number(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        from_float(value)


@pytest.mark.parametrize(
    ("value", "document"),
    [(1, 1), (2**63 - 1, 2**63 - 1), (2**63, 9.223372036854775808e18), (Fraction(1, 2), 0.5)],
)
def test_a_number_fits_into_json(value, document) -> None:
    assert to_json(value) == document


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_number_text_is_unambiguous(value: float) -> None:
    number = from_float(value)
    assert read_number(number_text(abs(number))) == abs(number)
