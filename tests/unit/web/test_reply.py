"""Responses in the form that the HTTP server or the fast path sends."""

import msgspec

from daemon.web.reply import JSON, TEXT, HandlerReply, read_reply, to_wire


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
