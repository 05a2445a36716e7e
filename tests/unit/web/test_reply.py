"""Answers in the form that a door sends."""

from daemon.web.reply import JSON, Reply, finished, read


def test_an_answer_without_a_body_names_no_type() -> None:
    assert "Content-Type" not in finished(Reply(status=404)).headers


def test_a_token_of_the_next_page_never_breaks_a_header() -> None:
    answer = finished(read(b"[]", 1, next_token="default.a\r\nb\0"))
    assert answer.headers["X-Nomad-NextToken"] == "default.a  b "


def test_a_token_of_the_next_page_may_be_in_any_language() -> None:
    answer = finished(read(b"[]", 1, next_token="default.\u65e5\ud800"))
    assert answer.headers["X-Nomad-NextToken"] == "default.\u65e5?"


def test_what_a_handler_says_in_a_header_is_one_line() -> None:
    assert (
        finished(Reply(headers={"X-Said": "a\r\nX-Split: b"})).headers["X-Said"] == "a  X-Split: b"
    )


def test_a_type_that_was_asked_for_stays_on_an_answer_without_a_body() -> None:
    bare = finished(Reply(status=204, headers={"Content-Type": JSON}))
    assert bare.headers["Content-Type"] == JSON
