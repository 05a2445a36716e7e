"""Answers in the form that the framework sends."""

from daemon.web.reply import JSON, Reply, read, response


def test_an_answer_without_a_body_names_no_type() -> None:
    assert "Content-Type" not in response(Reply(status=404)).headers


def test_a_token_of_the_next_page_never_breaks_a_header() -> None:
    answer = response(read(b"[]", 1, next_token="default.a\r\nb\0"))
    assert answer.headers["X-Nomad-NextToken"] == "default.a  b "


def test_a_type_that_was_asked_for_stays_on_an_answer_without_a_body() -> None:
    bare = response(Reply(status=204, headers={"Content-Type": JSON}))
    assert bare.headers["Content-Type"] == JSON
