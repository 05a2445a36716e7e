"""Decode forms (`application/x-www-form-urlencoded`) in steps, so that other threads can run.

The standard library splits a whole text at its percent signs in one call. For a form of 6 MB, that
call holds the GIL for 280 ms.
"""

from codecs import getincrementaldecoder
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

_PIECE = 64 * 1024  # bytes
_decoder = getincrementaldecoder("utf-8")


def pairs(body: bytes, most: int, *, is_strict: bool = False) -> list[tuple[str, str]]:
    """Return the names and values of a form.

    Raises `ValueError` for more than `most` fields or invalid UTF-8. If `is_strict`, each field
    needs an equals sign.
    """
    fields = body.split(b"&", most)
    if len(fields) > most:
        raise ValueError(f"more than {most} fields")
    form_pairs = list[tuple[str, str]]()
    for field in fields:
        name, equals, value = field.partition(b"=")
        if is_strict and not equals:
            raise ValueError("a field has no equals sign")
        if field:
            form_pairs.append((_text(name), _text(value)))
    return form_pairs


def _text(part: bytes) -> str:
    spelled, decoded = _decoder("strict"), _decoder("replace")
    texts = []
    for chunk in _pieces(part):
        spelled.decode(chunk)  # raises `UnicodeDecodeError`, which is a `ValueError`
        texts.append(decoded.decode(unquote_to_bytes(chunk.replace(b"+", b" "))))
    spelled.decode(b"", final=True)
    return "".join([*texts, decoded.decode(b"", final=True)])


def _pieces(part: bytes) -> Iterator[bytes]:
    """Yield a text in pieces. No piece ends within a percent-encoded sequence."""
    position = 0
    while position < len(part):
        end = position + _PIECE
        if end < len(part) and (cut := part.rfind(b"%", end - 2, end)) > position:
            end = cut
        yield part[position:end]
        position = end
