"""Query parameters: accepted values, and Nomad's errors for others."""

import pytest

from daemon.web.parameters import InvalidParameter, QueryParameters, duration
from storage.errors import Malformed


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_true_values_are_parsed(text: str) -> None:
    assert QueryParameters(f"purge={text}").flag("purge")


@pytest.mark.parametrize("text", ["0", "f", "F", "FALSE", "false", "False", ""])
def test_false_values_are_parsed(text: str) -> None:
    assert not QueryParameters(f"purge={text}").flag("purge")


def test_invalid_flag_is_refused_with_the_text_of_go() -> None:
    with pytest.raises(InvalidParameter) as caught:
        QueryParameters("purge=maybe").flag("purge")
    assert str(caught.value) == (
        'Failed to parse value of "purge" (maybe) as a bool: '
        'strconv.ParseBool: parsing "maybe": invalid syntax'
    )


@pytest.mark.parametrize(("text", "number"), [("", None), ("0", 0), ("-5", -5), ("%2B7", 7)])
def test_integers_are_parsed(text: str, number: int | None) -> None:
    assert QueryParameters(f"eval_priority={text}").number("eval_priority") == number


@pytest.mark.parametrize("text", ["x", "1.5", "99999999999999999999", "9" * 5000])
def test_invalid_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter, match="as a int"):
        QueryParameters(f"eval_priority={text}").number("eval_priority")


def test_error_of_an_integer_out_of_range_gives_this_reason() -> None:
    query = QueryParameters(f"a={2**63}&b={2**64}&c=x")
    with pytest.raises(InvalidParameter, match=r"strconv.Atoi: .*: value out of range"):
        query.number("a")
    with pytest.raises(InvalidParameter, match=r"strconv.ParseUint: .*: value out of range"):
        query.natural("b")
    with pytest.raises(InvalidParameter, match="invalid syntax"):
        query.natural("c")
    with pytest.raises(Malformed, match=f"c = 'x' must be an integer from 0 to {2**64 - 1}"):
        query.own_natural("c")


@pytest.mark.parametrize(("text", "number"), [("7", 7), ("0" * 5000 + "7", 7), ("", None)])
def test_unsigned_numbers_are_parsed(text: str, number: int | None) -> None:
    assert QueryParameters(f"version={text}").natural("version") == number


def test_number_with_thousands_of_digits_is_truncated() -> None:
    with pytest.raises(InvalidParameter, match=r"\(9{20}\.\.\. \(5000 digits\)\) as a uint64"):
        QueryParameters(f"version={'9' * 5000}").natural("version")


def test_duration_with_thousands_of_digits_is_invalid() -> None:
    assert duration(f"{'9' * 5000}h") is None


def test_first_of_a_repeated_parameter_is_used() -> None:
    assert QueryParameters("a=1&a=2&b").text("a") == "1"
    assert "b" in QueryParameters("a=1&b")


def test_too_many_parameters_are_refused() -> None:
    with pytest.raises(Malformed, match="more than 100 parameters"):
        QueryParameters("&".join(f"p{n}=1" for n in range(101)))


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("1s", 10**9),
        ("1m30s", 90 * 10**9),
        ("1.5h", 5400 * 10**9),
        (".5s", 5 * 10**8),
        ("-2ms", -2 * 10**6),
        ("3us", 3000),
        ("7ns", 7),
    ],
)
def test_durations_are_parsed(text: str, nanoseconds: int) -> None:
    assert duration(text) == nanoseconds


@pytest.mark.parametrize("text", ["", "5", "x", "1s ", "1d", "s", "1s2", "--1s", "1 s"])
def test_invalid_duration_is_none(text: str) -> None:
    assert duration(text) is None


def test_extension_parameter_error_names_field_value_and_fix() -> None:
    query = QueryParameters("strip=x&number=-1")
    with pytest.raises(Malformed, match="strip = 'x' must be true or false") as caught:
        query.own_flag("strip")
    assert not isinstance(caught.value, InvalidParameter)
    with pytest.raises(
        Malformed, match=f"number = '-1' must be an integer from 0 to {2**64 - 1}"
    ) as caught:
        query.own_natural("number")
    assert not isinstance(caught.value, InvalidParameter)
    assert (query.own_flag("other"), query.own_natural("other")) == (False, None)
