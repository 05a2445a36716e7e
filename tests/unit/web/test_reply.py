"""Responses in the form that the HTTP server or the fast path sends."""

import gzip

import msgspec
import pytest

from daemon.web.parameters import InvalidParameter
from daemon.web.reply import (
    JSON,
    TEXT,
    HandlerReply,
    message_reply,
    not_allowed,
    of_error,
    read_reply,
    text,
    to_wire,
    with_remarks,
)
from storage.errors import (
    CredentialRejected,
    Denied,
    Invalid,
    Malformed,
    NotFound,
    Refused,
    StewardError,
    StorageBusy,
    StorageError,
    StorageFull,
    TooLarge,
    TooOften,
    Unavailable,
    UnknownToken,
)


def test_response_without_a_body_has_no_content_type() -> None:
    assert "Content-Type" not in to_wire(HandlerReply(status=404)).headers


def test_next_page_token_never_breaks_a_header() -> None:
    answer = to_wire(read_reply(b"[]", 1, next_token="default.a\r\nb\0"))
    assert answer.headers["X-Nomad-NextToken"] == "default.a  b "


def test_next_page_token_can_be_in_any_language() -> None:
    answer = to_wire(read_reply(b"[]", 1, next_token="default.\u65e5\ud800"))
    assert answer.headers["X-Nomad-NextToken"] == "default.\u65e5?"


def test_header_value_of_a_handler_is_one_line() -> None:
    assert (
        to_wire(HandlerReply(headers={"X-Said": "a\r\nX-Split: b"})).headers["X-Said"]
        == "a  X-Split: b"
    )


def test_requested_content_type_is_sent_without_a_body() -> None:
    bare = to_wire(HandlerReply(status=204, headers={"Content-Type": JSON}))
    assert bare.headers["Content-Type"] == JSON


def test_typed_response_may_not_be_sniffed() -> None:
    answers = (
        HandlerReply(body={}),
        HandlerReply(body=b"a", content_type=TEXT),
        HandlerReply(headers={"Content-Type": JSON}),
    )
    for answer in answers:
        assert to_wire(answer).headers["X-Content-Type-Options"] == "nosniff"


def test_state_headers_have_both_spellings() -> None:
    answer = to_wire(
        msgspec.structs.replace(read_reply(b"[]", 7, next_token="a"), knows_leader=False)
    )
    for by in ("Service", "Nomad"):
        told = {
            name.removeprefix(f"X-{by}-"): value
            for name, value in answer.headers.items()
            if name.startswith(f"X-{by}-")
        }
        assert told == {"Index": "7", "KnownLeader": "false", "LastContact": "0", "NextToken": "a"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidParameter("no"), 500),
        (Malformed("no"), 400),
        (TooLarge("no"), 413),
        (TooOften("no"), 429),
        (Denied("no"), 403),
        (UnknownToken(), 403),
        (NotFound("no"), 404),
        (Invalid("no"), 500),
        (CredentialRejected("no"), 401),
        (Refused("no"), 500),
        (Unavailable("no"), 503),
        (StorageFull("no"), 507),
        (StorageError("no"), 503),
        (StewardError("no"), 500),
    ],
)
def test_each_error_has_a_status(error: StewardError, status: int) -> None:
    answer = to_wire(of_error(error))
    assert (answer.status, answer.body) == (status, str(error).encode())
    assert answer.headers["Content-Type"] == TEXT


def test_only_a_searched_state_has_an_index() -> None:
    without, with_index = (to_wire(of_error(NotFound("no", index=at))) for at in (None, 7))
    assert "X-Nomad-Index" not in without.headers
    assert "X-Nomad-KnownLeader" not in without.headers
    assert with_index.headers["X-Nomad-Index"] == "7"
    assert with_index.headers["X-Nomad-KnownLeader"] == "true"


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (TooOften("no", retry_after=9), "9"),
        (TooOften("no"), None),
        (Unavailable("no"), "5"),
        (StorageBusy("no"), "1"),
        (StorageError("no"), None),
        (Denied(), None),
    ],
)
def test_error_says_when_to_retry(error: StewardError, seconds: str | None) -> None:
    assert of_error(error).headers.get("Retry-After") == seconds


def test_only_json_is_indented() -> None:
    assert to_wire(HandlerReply(body={"a": 1}), pretty=True).body == b'{\n    "a": 1\n}\n'
    assert to_wire(HandlerReply(body={"a": 1})).body == b'{"a":1}'
    assert to_wire(text('{"a":1}'), pretty=True).body == b'{"a":1}'


def test_compressed_response_has_the_same_content() -> None:
    plain, compressed = (to_wire(text("a" * 99), gzipped=gzipped) for gzipped in (False, True))
    assert "Content-Encoding" not in plain.headers
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(compressed.body) == plain.body == b"a" * 99
    assert "Content-Encoding" not in to_wire(HandlerReply(status=204), gzipped=True).headers


def test_response_to_a_wrong_method_lists_the_methods_once() -> None:
    reply = not_allowed(["PUT", "GET", "PUT"])
    assert (reply.status, reply.headers["Allow"]) == (405, "GET, PUT")


def test_further_warnings_follow_earlier_ones() -> None:
    reply = text("done")
    assert with_remarks(reply, []) is reply
    first = with_remarks(reply, ["a", "b"])
    assert first.headers["X-Steward-Warning"] == "a; b"
    assert with_remarks(first, ["c"]).headers["X-Steward-Warning"] == "a; b; c"


def test_message_is_the_text_of_a_plain_reply() -> None:
    assert message_reply(text("no such job", 404)) == "no such job"
    assert message_reply(HandlerReply(body={"a": 1})) == ""
    assert message_reply(HandlerReply()) == ""
