"""Decoding forms in steps: the same results as the standard library, with short calls."""

import random
from urllib.parse import parse_qsl

import pytest

from daemon.text import url_forms
from daemon.text.url_forms import pairs

PARTS = [b"a", b"%41", b"%c3%a9", b"%f0%9f%98%80", "é".encode(), b"%ff", b"%", b"%4", b"+", b"%zz"]
PIECE = 64 * 1024


@pytest.mark.parametrize("piece", [3, 4, 10, PIECE])
def test_pairs_are_those_of_the_standard_library(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url_forms, "_PIECE", piece)
    source = random.Random(piece)
    for _ in range(1000):
        body = b"".join(source.choices([*PARTS, b"&", b"="], k=source.randrange(20)))
        assert pairs(body, 100) == parse_qsl(body.decode(), keep_blank_values=True), body


def test_long_form_is_decoded_in_short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    unquote = url_forms.unquote_to_bytes

    def noting(part: bytes) -> bytes:
        called.append(len(part))
        return unquote(part)

    monkeypatch.setattr(url_forms, "unquote_to_bytes", noting)
    assert pairs(b"a=" + b"%C3%A9" * 500_000, 10) == [("a", "é" * 500_000)]
    assert max(called) <= PIECE


@pytest.mark.parametrize(
    ("body", "is_strict"), [(b"a=1&b=2&c=3", False), (b"a=1&", True), (b"a=\xff", False)]
)
def test_invalid_forms_are_refused(body: bytes, is_strict: bool) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # its subclasses differ, and callers show none
        pairs(body, 2, is_strict=is_strict)
