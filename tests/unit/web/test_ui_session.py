"""Forms, cookies and replies of the API, as pages read them."""

from typing import Any

import pytest

from daemon.web import ui_session
from daemon.web.reply import JSON, HandlerReply, text
from daemon.web.ui_session import (
    COOKIE,
    SECURE_COOKIE,
    RejectedForm,
    UiRequest,
    _complaint,
    _encoded,
    _fields,
    _format_query_value,
    _head_refusal,
    _names,
)
from storage.errors import Denied, Malformed, NotFound


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b"no such job", "text/plain", "no such job"),
        (b"null", JSON, "the request is invalid"),
        (b'{"errors": ["a", "b"]}', JSON, "a; b"),
        (b'{"errors": []}', JSON, '{"errors": []}'),
        (b'{"other": 1}', JSON, '{"other": 1}'),
        (b"[1]", JSON, "[1]"),
    ],
)
def test_message_of_an_error_is_read_from_the_reply(body: bytes, kind: str, message: str) -> None:
    assert _complaint(body, kind) == message


@pytest.mark.parametrize(
    ("reply", "document"),
    [
        (HandlerReply(), None),
        (HandlerReply(body={"a": 1}), {"a": 1}),
        (HandlerReply(body=b'{"a":1}'), {"a": 1}),
        (text("a: 1"), "a: 1"),
        (text("a: 1", 399), "a: 1"),
    ],
)
def test_reply_is_decoded_by_its_type(reply: HandlerReply, document: Any) -> None:
    assert UiRequest.decode_reply(reply) == document


@pytest.mark.parametrize(
    ("status", "error"), [(400, Malformed), (403, Denied), (404, NotFound), (500, Malformed)]
)
def test_error_reply_raises_the_matching_error(status: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="no") as caught:
        UiRequest.decode_reply(text("no", status))
    assert type(caught.value) is error


def test_bare_error_reply_is_an_error() -> None:
    with pytest.raises(NotFound, match="the request is invalid"):
        UiRequest.decode_reply(HandlerReply(status=404))


@pytest.mark.parametrize(
    ("headers", "is_accepted"),
    [
        ({"origin": "http://localhost"}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({}, False),
        ({"origin": "", "sec-fetch-site": ""}, False),
    ],
)
def test_form_must_come_from_a_browser(headers: dict[str, str], is_accepted: bool) -> None:
    kind = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    assert (_head_refusal(headers | kind) == "") is is_accepted
    assert _head_refusal(headers) != ""


def test_session_cookies_are_found_among_others() -> None:
    given = {"cookie": f"a=b; {COOKIE}=one;{SECURE_COOKIE}=two; x{COOKIE}=three; {COOKIE}=four=5"}
    assert _names(given, is_secure=False) == ["one", "four=5"]
    assert _names(given, is_secure=True) == ["two"]
    assert _names({}, is_secure=False) == []


def test_form_is_limited_and_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _fields(b"") == {}
    assert _fields(b"a=1&b=%41") == {"a": "1", "b": "A"}
    invalid = _fields(b"a=%ff&b")
    assert isinstance(invalid, Malformed)
    assert "not a valid form" in str(invalid)
    monkeypatch.setattr(ui_session, "_LONGEST_FORM", 3)
    assert _fields(b"a=1") == {"a": "1"}
    long = _fields(b"a=12")
    assert isinstance(long, Malformed)
    assert "more than 3 bytes" in str(long)


def test_number_of_fields_is_limited() -> None:
    def form(number: int) -> bytes:
        return b"&".join(b"f%d=1" % field for field in range(number))

    fields = _fields(form(200))
    assert isinstance(fields, dict)
    assert len(fields) == 200
    assert isinstance(_fields(form(201)), Malformed)


@pytest.mark.parametrize(
    ("value", "formatted"), [(True, "true"), (False, "false"), (7, "7"), ("A", "A")]
)
def test_query_value_is_formatted(value: object, formatted: str) -> None:
    assert _format_query_value(value) == formatted


def test_body_of_a_request_is_json_unless_it_is_bytes() -> None:
    assert (_encoded(None), _encoded(b"a"), _encoded({"a": 1})) == (b"", b"a", b'{"a":1}')


def test_rejected_form_shows_its_values_again() -> None:
    form = RejectedForm("count is invalid", {"count": "x", "group.all": "on", "empty": ""})
    assert form.value("count", "old") == "x"
    assert form.value("other", "old") == ""
    assert form.has("group.all")
    assert not form.has("other", otherwise=True)
    assert form.fault("count") == "count is invalid"
    assert form.fault("empty") == ""
    new = RejectedForm()
    assert new.value("count", "old") == "old"
    assert new.has("count", otherwise=True)
    assert not new.has("count")


@pytest.mark.parametrize("message", ["'x y' is no number", 'there is no "x y"'])
def test_quoted_value_names_the_field_of_an_error(message: str) -> None:
    form = RejectedForm(message, {"size": "x y", "empty": ""})
    assert form.fault("size") == message
    assert form.fault("empty") == ""


def test_end_of_a_field_name_names_the_field_of_an_error() -> None:
    form = RejectedForm("Count must be positive", {"group.count": "-1", "count.group": "b"})
    assert (form.fault("group.count"), form.fault("count.group")) == (form.message, "")


def test_rows_of_a_variable_keep_their_order_without_empty_names() -> None:
    values = {"name.2": "b", "value.2": "2", "name.1": "a", "name.3": "", "value.3": "3"}
    assert RejectedForm("no", values).rows == [("b", "2"), ("a", "")]
