"""Grapheme clusters: user-perceived characters of one or more code points.

The rules are a subset of Unicode text segmentation, sufficient for names, messages and columns.
They cover combining marks, emoji sequences, flags, Hangul syllables and CR LF.
"""

import unicodedata
from collections.abc import Iterator

_JOINER = "\u200d"
_MARKS = frozenset({"Mn", "Me", "Mc"})


def count(text: str) -> int:
    """Return the number of grapheme clusters."""
    if text.isascii() and "\r\n" not in text:
        return len(text)
    return sum(1 for _ in split(text))


def split(text: str) -> Iterator[str]:
    """Yield the grapheme clusters."""
    if text.isascii() and "\r\n" not in text:
        yield from text
        return
    start, flags = 0, 0
    for position in range(1, len(text)):
        flags = flags + 1 if _is_flag(text[position - 1]) else 0
        if _breaks(text[position - 1], text[position], flags):
            yield text[start:position]
            start = position
    if text:
        yield text[start:]


def _breaks(before: str, char: str, flags: int) -> bool:
    if before == "\r" and char == "\n":
        return False
    if _is_extending(char):
        return before in "\r\n"
    if before == _JOINER:
        return not _is_pictograph(char)
    if _is_flag(char):
        return flags % 2 == 0  # flags are pairs
    return not _is_hangul_pair(before, char)


def _is_extending(char: str) -> bool:
    return (
        char == _JOINER
        or unicodedata.category(char) in _MARKS
        or "\U0001f3fb" <= char <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= char <= "\U000e007f"  # tags
        or char in "\uff9e\uff9f\u200c"
    )


def _is_pictograph(char: str) -> bool:
    return char > "\u2000" and unicodedata.category(char) in ("So", "Cn", "Sk")


def _is_flag(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _is_hangul_pair(before: str, char: str) -> bool:
    """Return whether two parts of a Hangul syllable form one cluster."""
    if "\u1100" <= before <= "\u115f":
        return "\u1100" <= char <= "\u11a7" or "\uac00" <= char <= "\ud7a3"
    if "\u1160" <= before <= "\u11a7" or "\uac00" <= before <= "\ud7a3":
        return "\u1160" <= char <= "\u11ff"
    return "\u11a8" <= before <= "\u11ff" and "\u11a8" <= char <= "\u11ff"
