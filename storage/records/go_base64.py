"""Decode Base64 as Go does. Line ends are ignored, and errors have the offset that Go reports."""

import base64
import binascii
import string

from storage.errors import Malformed

_ALPHABET = frozenset((string.ascii_letters + string.digits + "+/").encode())
_LINE_ENDS = b"\r\n"


def decode_base64(text: str) -> bytes:
    """Decode a base64 text. Raises `Malformed` with Go's error text."""
    raw = text.encode()
    try:
        return base64.b64decode(raw.translate(None, _LINE_ENDS), validate=True)
    except binascii.Error:
        raise Malformed(f"illegal base64 data at input byte {_first_fault(raw)}") from None


def _first_fault(raw: bytes) -> int:
    """Return the offset that Go reports for an invalid text.

    This is the offset of the first invalid byte, or of the last group if that is incomplete.
    """
    group: list[int] = []  # offsets of the bytes of the current group of four
    for offset, byte in enumerate(raw):
        if byte in _LINE_ENDS:
            continue
        if byte in _ALPHABET:
            group = [offset] if len(group) == 4 else [*group, offset]
            continue
        padding = raw[offset:].translate(None, _LINE_ENDS)
        if byte == b"="[0] and len(group) in (2, 3) and padding.startswith(b"=" * (4 - len(group))):
            return offset + 4 - len(group)  # data after a complete text
        return offset
    return group[0] if group else len(raw)
