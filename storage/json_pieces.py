"""Decode JSON documents of several megabytes in pieces.

A single call of the decoder holds the GIL until it ends. For the definition of a workflow of 1,000
steps, this takes 11 ms. If a worker thread decodes in pieces, the event loop can run in between.
"""

from collections.abc import Iterable, Iterator

import msgspec

from storage.loop_share import AT_ONCE, spend

_DEPTH = 3  # nested levels that are divided; each level needs another scan of the text
_BYTES = 128  # bytes that count as one unit of work
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])


def decode(text: bytes, depth: int = _DEPTH) -> object:
    """Return a decoded document. Raises `msgspec.DecodeError` or `UnicodeDecodeError`.

    `depth` is the number of nested levels that are decoded in pieces.
    """
    spend(len(text) // _BYTES)
    if len(text) > AT_ONCE and depth:
        match text[:1]:
            case b"{":
                members = _MEMBERS.decode(text)
                return dict(zip(members, _decoded(members.values(), depth - 1), strict=True))
            case b"[":
                return [*_decoded(_ELEMENTS.decode(text), depth - 1)]
    value: object = msgspec.json.decode(text)
    return value


def _decoded(parts: Iterable[msgspec.Raw], depth: int) -> Iterator[object]:
    unspent = 0
    for part in parts:
        if (length := len(part)) > AT_ONCE:
            yield decode(bytes(part), depth)
            continue
        if (unspent := unspent + length) > AT_ONCE:
            spend(unspent // _BYTES)
            unspent = 0
        yield msgspec.json.decode(part)
