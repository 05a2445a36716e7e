"""Boundaries of the characters that a reader sees."""

import pytest

from daemon.jobspec.hcl.graphemes import count, split


@pytest.mark.parametrize(
    ("text", "characters"),
    [
        ("", []),
        ("abc", ["a", "b", "c"]),
        ("a\r\nb", ["a", "\r\n", "b"]),
        ("e\u0301x", ["e\u0301", "x"]),
        ("añ☃😀", ["a", "ñ", "☃", "😀"]),
        ("👨\u200d👩\u200d👧!", ["👨\u200d👩\u200d👧", "!"]),
        ("👍🏽", ["👍🏽"]),
        ("🇳🇱🇩🇪🇫", ["🇳🇱", "🇩🇪", "🇫"]),
        ("☀\ufe0f☀", ["☀\ufe0f", "☀"]),
        ("\u1112\u1161\u11ab한", ["\u1112\u1161\u11ab", "한"]),
        ("\n\u0301", ["\n", "\u0301"]),
        ("คำ", ["ค", "ำ"]),
    ],
)
def test_characters_are_grapheme_clusters(text: str, characters: list[str]) -> None:
    assert list(split(text)) == characters
    assert count(text) == len(characters)
    assert "".join(split(text)) == text
