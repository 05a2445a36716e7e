"""Fields as clients write them, and the errors if they cannot be read."""

import pytest

from daemon.text.request_fields import RequestFields, is_duration, of_query, parse
from storage.errors import Malformed


def test_body_with_many_values_is_refused_before_decoding() -> None:
    with pytest.raises(Malformed, match="error parsing JSON: more than 20000 values"):
        parse(b'{"a":[' + b"1," * 20_000 + b"1]}", "")
    assert parse(b'{"a":"' + b"," * 30_000 + b'"}', "") == {"a": "," * 30_000}


@pytest.mark.parametrize("before", ["", " \n\t"])
def test_json_with_a_form_content_type_is_json(before: str) -> None:
    body = f'{before}{{"role":"a&b=c"}}'.encode()
    assert parse(body, "application/x-www-form-urlencoded") == {"role": "a&b=c"}


def test_list_with_a_form_content_type_is_no_form() -> None:
    with pytest.raises(Malformed, match="error parsing JSON"):
        parse(b'["role"]', "application/x-www-form-urlencoded; charset=utf-8")


def test_a_long_form_is_refused() -> None:
    form = "application/x-www-form-urlencoded"
    with pytest.raises(Malformed, match="the form has 300002 bytes, more than 262144"):
        parse(b"a=" + b"%41" * 100_000, form)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (90, 90),
        ("90", 90),
        (1.5, 1),
        ("30m", 1800),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("2d", 172800),
        ("", 0),
        (None, 0),
        ("500ms", 0),
    ],
)
def test_a_duration_is_a_number_or_a_text_with_units(value: object, seconds: int) -> None:
    assert RequestFields({"ttl": value}).seconds("ttl") == seconds


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("abc", 'time: invalid duration "abc"'),
        ("1d12h", 'time: unknown unit "d" in duration "1d12h"'),
        ("1h5", 'time: missing unit in duration "1h5"'),
        ("-", 'time: invalid duration "-"'),
        (-5, "cannot provide negative value '-5'"),
        ("-5m", "cannot provide negative value '-300'"),
        ("9" * 30, f'time: invalid duration "{"9" * 30}"'),
    ],
)
def test_invalid_duration_is_refused_with_the_reason(value: object, reason: str) -> None:
    with pytest.raises(Malformed) as raised:
        RequestFields({"ttl": value}).seconds("ttl")
    assert str(raised.value) == f'error converting input for field "ttl": {reason}'


def test_duration_can_be_negative_if_allowed() -> None:
    fields = RequestFields({"a": -1, "b": "-3s"})
    assert (fields.signed_seconds("a"), fields.signed_seconds("b")) == (-1, -3)
    assert is_duration("1h") is None
    assert is_duration("soon") == 'time: invalid duration "soon"'


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("a, b ,c", ["a", "b", "c"]),
        (["a", " b "], ["a", "b"]),
        (5, ["5"]),
        ("", []),
        (None, []),
        ([True, 7], ["1", "7"]),
    ],
)
def test_list_can_be_one_text_with_commas(value: object, texts: list[str]) -> None:
    assert RequestFields({"ids": value}).texts("ids") == texts


@pytest.mark.parametrize(
    ("convert", "value", "reason"),
    [
        (
            "text",
            {"a": 1},
            "'' expected type 'string', got unconvertible type 'map[string]interface {}', "
            "value: 'map[a:1]'",
        ),
        (
            "text",
            ["a"],
            "'' expected type 'string', got unconvertible type '[]interface {}', value: '[a]'",
        ),
        (
            "texts",
            [["a"], "b"],
            "1 error(s) decoding:\n\n* '[0]' expected type 'string', got unconvertible type "
            "'[]interface {}', value: '[a]'",
        ),
        (
            "number",
            "many",
            "cannot parse '' as int: strconv.ParseInt: parsing \"many\": invalid syntax",
        ),
        (
            "flag",
            "maybe",
            "cannot parse '' as bool: strconv.ParseBool: parsing \"maybe\": invalid syntax",
        ),
        ("pairs", 5, 'invalid key pair "5"'),
    ],
)
def test_unconvertible_value_is_refused_with_the_reason(
    convert: str, value: object, reason: str
) -> None:
    with pytest.raises(Malformed) as raised:
        getattr(RequestFields({"x": value}), convert)("x")
    assert str(raised.value) == f'error converting input for field "x": {reason}'


def test_values_of_other_types_are_converted() -> None:
    fields = RequestFields(
        {"a": 12345, "b": True, "c": "7", "d": "true", "e": ["k=v"], "f": {"k": 1}}
    )
    assert fields.text("a") == "12345"
    assert fields.text("b") == "1"
    assert fields.number("c") == 7
    assert fields.flag("d") is True
    assert fields.pairs("e") == {"k": "v"}
    assert fields.pairs("f") == {"k": "1"}
    assert fields.text("absent", "default") == "default"


@pytest.mark.parametrize("body", [b"{not json", b"5", b"[1]", b'{"a":1} more', b'"text"', b"\xff"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed, match="error parsing JSON"):
        parse(body, "application/json")


def test_a_body_nested_too_deep_is_refused() -> None:
    with pytest.raises(Malformed, match="error parsing JSON"):
        parse(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "")


def test_bodies_can_be_json_or_forms() -> None:
    assert parse(b" ", "application/json") == {}
    assert parse(b"null", "") == {}
    assert parse(b'{"a":1,"a":2}', "text/plain") == {"a": 2}
    assert parse(b"a=1&b=x%20y&b=z", "application/x-www-form-urlencoded; charset=utf-8") == {
        "a": "1",
        "b": ["x y", "z"],
    }
    assert of_query([("after", "x")]) == {"after": "x"}


def test_unknown_fields_are_named_in_order() -> None:
    assert RequestFields({"z": 1, "role": 2, "a": 3}).unknown(["role"]) == ["a", "z"]


@pytest.mark.parametrize(
    "value", ["9" * 5000, f"-{'9' * 5000}", f"{'9' * 5000}d", f"{'9' * 5000}h"]
)
def test_a_number_of_thousands_of_digits_is_out_of_range(value: str) -> None:
    fields = RequestFields({"ttl": value, "num_uses": value})
    for read in (lambda: fields.signed_seconds("ttl"), lambda: fields.number("num_uses")):
        with pytest.raises(Malformed, match="error converting input for field"):
            read()


@pytest.mark.parametrize(("value", "number"), [(3.0, 3), (1e2, 100), (-0.0, 0), (True, 1)])
def test_whole_number_can_have_a_fraction(value: object, number: int) -> None:
    assert RequestFields({"n": value}).number("n") == number


@pytest.mark.parametrize("value", [1.5, 1e30, "3.0", float("inf")])
def test_number_that_is_not_whole_or_too_large_is_refused(value: object) -> None:
    with pytest.raises(Malformed):
        RequestFields({"n": value}).number("n")


@pytest.mark.parametrize(("end", "named"), [(None, []), (1, ["deep"])])
def test_unknown_field_is_named_at_any_depth(end: object, named: list[str]) -> None:
    value: object = end
    for _ in range(10_000):
        value = [{"a": value}]
    assert RequestFields({"deep": value}).unknown(["role"]) == named
