"""Lines of logs in color: class names from a closed set, and text without active content."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.ui.ansi import PLAIN, plain, styled

CLASSES = re.compile(
    r"(?:(?:fg|bg)-(?:bright-)?(?:black|red|green|yellow|blue|magenta|cyan|white)"
    r"|bold|faint|italic|underline|inverse|struck)(?: |$)"
)
ACTS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
LINE = st.text(
    st.one_of(
        st.sampled_from(list("\x1b[]();:m0123456789K\\\x07\r\t\x9b<script>\u202e")),
        st.characters(codec="utf-8"),
    ),
    max_size=60,
)


@given(st.lists(LINE, max_size=4))
def test_line_contains_only_text_and_known_classes(lines: list[str]) -> None:
    style = PLAIN
    for line in lines:
        pieces, style = styled(line, style)
        assert not any(ACTS.search(text) for _, text in pieces)
        assert not any(CLASSES.sub("", classes) for classes, _ in pieces)


@given(st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126)))
def test_plain_text_is_unchanged(line: str) -> None:
    assert plain(line) == line


@pytest.mark.parametrize(
    ("line", "pieces"),
    [
        ("\x1b[31mred\x1b[0m plain", [("fg-red", "red"), ("", " plain")]),
        ("\x1b[1;92mok\x1b[22m", [("fg-bright-green bold", "ok")]),
        ("\x1b[38;5;196mx", [("fg-bright-red", "x")]),
        ("\x1b[38;2;10;20;200mx\x1b[39my", [("fg-bright-blue", "x"), ("", "y")]),
        ("\x1b[38:5:2;44mx", [("fg-green bg-blue", "x")]),
        ("\x1b[41;1mx\x1b[mx", [("bg-red bold", "x"), ("", "x")]),
        ("\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07", [("", "link")]),
        ("\x1b]0;title", []),
        ("\x1b[2K\x1b[1A\x1b[?25lx\x1b(B", [("", "x")]),
        ("\x1b[31", [("", "31")]),
        ("10%\r20%\r100%\r", [("", "100%")]),
        ("bell\x07 nul\x00", [("", "bell\u2407 nul\u2400")]),
        ("a\u202eb", [("", "a\\u202eb")]),
        ('<img src=x onerror="alert(1)">', [("", '<img src=x onerror="alert(1)">')]),
        ("\x1b[999999999999;31mx", [("fg-red", "x")]),
    ],
)
def test_a_line_is_shown_in_pieces(line: str, pieces: list[tuple[str, str]]) -> None:
    assert styled(line)[0] == pieces


def test_color_continues_in_the_next_line() -> None:
    _, style = styled("\x1b[31mbegin")
    assert styled("end\x1b[0m", style) == ([("fg-red", "end")], PLAIN)


def test_line_with_many_sequences_is_bounded() -> None:
    pieces, _ = styled("\x1b[31mx\x1b[32my" * 10_000)
    assert len(pieces) <= 401
    assert sum(len(text) for _, text in pieces) == 20_000
