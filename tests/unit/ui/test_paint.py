"""Job files with syntax highlighting, and side by side."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.ui.highlight import MOST_COMPARED, MOST_PAINTED, highlight, side_by_side

SOURCE = """job "web" { # why
  count = 3 // how many
  data  = <<EOF
  x = "1
  EOF
  ok    = true /* or
  not */
}
"""


def special(source: str) -> list[tuple[str, str]]:
    return [(kind, text.strip()) for kind, text in highlight(source) if kind]


def test_highlighting_recognizes_each_piece() -> None:
    assert special(SOURCE) == [
        ("block", "job"),
        ("text", '"web"'),
        ("comment", "# why"),
        ("key", "count"),
        ("number", "3"),
        ("comment", "// how many"),
        ("key", "data"),
        ("text", '<<EOF\n  x = "1\n  EOF'),
        ("key", "ok"),
        ("word", "true"),
        ("comment", "/* or\n  not */"),
    ]


def test_json_has_keys_and_texts() -> None:
    assert special('{"A": [1.5, null], "b" : "c:"}') == [
        ("key", '"A"'),
        ("number", "1.5"),
        ("word", "null"),
        ("key", '"b"'),
        ("text", '"c:"'),
    ]


@given(st.text(alphabet='ab_-1."\\<{}[]=:#/* \n', max_size=200))
def test_highlighted_parts_are_the_whole_text(source: str) -> None:
    assert "".join(text for _, text in highlight(source)) == source


@pytest.mark.parametrize("piece", ["a-", "<<A\n", "/*", '"\\', "\n    ", "1.", "a =", "\n a"])
def test_highlighting_keeps_the_longest_text(piece: str) -> None:
    source = (piece * MOST_PAINTED)[:MOST_PAINTED]
    assert "".join(text for _, text in highlight(source)) == source


def test_very_long_text_is_not_highlighted() -> None:
    source = "a = 1\n" * MOST_PAINTED
    assert list(highlight(source)) == [("", source)]


def test_texts_are_aligned_at_their_differences() -> None:
    old = "\n".join(f"line {number}" for number in range(20))
    new = old.replace("line 10\n", "other\nmore\n").replace("line 19", "")
    lines = side_by_side(old, new)
    assert lines is not None
    changed = [(line.fate, line.old_number, line.old, line.new_number, line.new) for line in lines]
    assert ("edited", 11, "line 10", 11, "other") in changed
    assert ("added", None, "", 12, "more") in changed
    assert changed[-1] == ("deleted", 20, "line 19", None, "")
    assert ("skipped", None, "", None, "") in changed
    assert ("same", 1, "line 0", 1, "line 0") not in changed


def test_equal_or_very_long_texts_have_no_diff() -> None:
    assert side_by_side("a\nb", "a\nb") == []
    assert side_by_side("a\n" * (MOST_COMPARED + 1), "b") is None
