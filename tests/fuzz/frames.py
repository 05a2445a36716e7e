"""WebSocket frames of a client: valid, wrong, cut, huge or out of order (RFC 6455, section 5)."""

import json
import random
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.fuzz.texts import ODD

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_LONGEST = 125  # maximum bytes of a control frame, and of a payload with a one-byte length


class Sent(NamedTuple):
    """The messages of a client: the headers of its upgrade, and the pieces after it."""

    query: str
    headers: tuple[str, ...]
    pieces: tuple[bytes, ...]


def frame(
    kind: int,
    payload: bytes = b"",
    *,
    last: bool = True,
    reserved: int = 0,
    masked: bool = True,
    length: int | None = None,
    width: int = 0,
) -> bytes:
    """Return a WebSocket frame; `length` replaces its true length, in `width` bytes."""
    said = len(payload) if length is None else length
    width = width or (1 if said <= _LONGEST else 2 if said < 2**16 else 8)
    mark = 0x80 if masked else 0
    short = said if width == 1 else 126 if width == 2 else 127
    head = bytes([(0x80 if last else 0) | reserved << 4 | kind, mark | short])
    if width > 1:
        head += struct.pack(">H" if width == 2 else ">Q", said)
    return head + (b"\0\0\0\0" if masked else b"") + payload


def codes(answer: bytes) -> list[int]:
    """Return the codes of the close frames in the daemon's output.

    Raises `ValueError` for invalid output.
    """
    found, at = [], 0
    while at < len(answer):
        kind, short = answer[at] & 15, answer[at + 1]
        width = {126: 2, 127: 8}.get(short, 0)
        length = int.from_bytes(answer[at + 2 : at + 2 + width]) if width else short
        payload = answer[at + 2 + width : at + 2 + width + length]
        if kind not in (TEXT, CLOSE, PING, PONG) or short > 127 or len(payload) != length:
            raise ValueError(f"no frame at {at}: {answer[at : at + 40]!r}")
        if kind == CLOSE:
            found.append(int.from_bytes(payload[:2]))
        at += 2 + width + length
    return found


_MESSAGES = (
    *(
        {"stdin": {"data": "aGkK"}},
        {"stdin": {"close": True}},
        {"tty_size": {"height": 9, "width": 9}},
    ),
    *(
        {"stdin": {"data": "*"}},
        {"stdin": {"data": 1}},
        {"stdin": None},
        {"stdin": []},
        {},
        [],
        None,
    ),
    *(
        {"tty_size": {"height": 2**40, "width": -1}},
        {"tty_size": {"height": 1.5}},
        {"x": 1},
        0,
        "x",
    ),
    *({"version": 1, "auth_token": "x"}, {"version": 2}, {"version": "1"}, {"auth_token": None}),
)
_TEXTS = (
    *(json.dumps(message).encode() for message in _MESSAGES),
    *(item.encode("utf-8", "surrogatepass") for item in ODD),
    *(
        b"{",
        b"\xff\xfe",
        b'"\\ud800"',
        b"[" * 5000,
        b"1e999",
        b'{"stdin":{"data":"' + b"A" * 99_999,
    ),
)
_CODES = (0, 1, 999, 1000, 1001, 1004, 1005, 1006, 1009, 1015, 2999, 3000, 4999, 5000, 65535)


def _message(rng: random.Random) -> bytes:
    return frame(rng.choice((TEXT, TEXT, BINARY)), rng.choice(_TEXTS))


def _pieces(rng: random.Random) -> bytes:
    """Return a message in fragments.

    There can be other frames between the fragments, and the last fragment can be missing.
    """
    text, sent = rng.choice(_TEXTS), b""
    for number in range(rng.randint(1, 6)):
        begin, text = text[: len(text) // 2], text[len(text) // 2 :]
        sent += frame(CONTINUED if number else rng.choice((TEXT, BINARY)), begin, last=False)
        if rng.random() < 0.3:
            sent += rng.choice(_ODD_FRAMES)(rng)
    return sent + (frame(CONTINUED, text) if rng.random() < 0.8 else b"")


def _control(rng: random.Random) -> bytes:
    size = rng.choice((0, 1, 125, 126, 70_000))
    kind = rng.choice((PING, PONG, CLOSE))
    return frame(kind, b"x" * size, last=rng.random() < 0.8)


def _close(rng: random.Random) -> bytes:
    reason = rng.choice((b"", b"bye", b"\xff", b"x" * 123, b"x" * 124))
    return frame(CLOSE, struct.pack(">H", rng.choice(_CODES)) + reason)


def _wrong(rng: random.Random) -> bytes:
    """Return a frame that the rules forbid."""
    kind, text = rng.choice((TEXT, BINARY, PING, CLOSE)), rng.choice(_TEXTS)
    return rng.choice(
        (
            frame(kind, text, masked=False),
            frame(kind, text, reserved=rng.randint(1, 7)),
            frame(rng.choice((3, 4, 5, 6, 7, 11, 12, 13, 14, 15)), text),
            frame(CONTINUED, text),
            frame(kind, text[:_LONGEST], width=rng.choice((2, 8))),
            frame(kind, text, length=rng.choice((2**63, 2**64 - 1, 2**62, len(text) + 1)), width=8),
        )
    )


def _large(rng: random.Random) -> bytes:
    """Return a message above the maximum size, in one frame or in several."""
    kind, text = rng.choice((TEXT, BINARY)), b"x" * rng.choice((2**20, 2**20 + 1, 300_000))
    parts = (frame(kind, text, last=False), *(frame(CONTINUED, text, last=False) for _ in "123"))
    return rng.choice((frame(kind, text) + frame(3 - kind, b"y"), b"".join(parts)))


def _many(rng: random.Random) -> bytes:
    small = rng.choice((frame(PING), frame(PONG, b"x"), frame(CONTINUED, last=False)))
    return frame(TEXT, b"{", last=False) * rng.randint(0, 1) + small * rng.randint(1, 3000)


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 2, 9, 100, 5000)))


_ODD_FRAMES: tuple[Callable[[random.Random], bytes], ...] = (_message, _control, _close, _wrong)
_KINDS = (*_ODD_FRAMES, _message, _message, _pieces, _pieces, _wrong, _large, _many, _noise)
_HEADERS = (
    *((),) * 12,
    ("Sec-WebSocket-Extensions: permessage-deflate",),
    ("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=x",),
    ("Sec-WebSocket-Protocol: a, b",),
    ("Sec-WebSocket-Version: 12",),
    ("Sec-WebSocket-Key: ",),
    ("Content-Length: 5",),
    ("Transfer-Encoding: chunked",),
    ("Upgrade: h2c",),
    ("Expect: 100-continue",),
    ("X-Nomad-Token: \xff",),
)
_QUERIES = (
    *("task=main&command=%5B%22/bin/cat%22%5D",) * 4,
    "task=main&command=%5B%22/bin/true%22%5D",
    "task=main&command=%5B%22/bin/cat%22%5D&tty=true",
    "task=main&command=%5B%22/bin/cat%22%5D&ws_handshake=true",
    "task=main&action=say&alloc_id=ALLOCATION",
    "task=main&action=say&alloc_id=ALLOCATION&tty=true",
    "task=none&command=%5B%22x%22%5D",
    "command=%5B%5D&tty=maybe&ws_handshake=x",
)


def conversations(seed: int, count: int) -> Iterator[Sent]:
    """Yield the messages of random clients."""
    chance = random.Random(seed)
    for _ in range(count):
        sent = b"".join(chance.choice(_KINDS)(chance) for _ in range(chance.randint(1, 6)))
        if chance.random() < 0.2:
            sent = sent[: chance.randint(0, len(sent))]
        cuts = sorted(chance.randint(0, len(sent)) for _ in range(chance.randint(0, 2)))
        bounds = [0, *cuts, len(sent)]
        pieces = (sent[begin:end] for begin, end in pairwise(bounds))
        yield Sent(chance.choice(_QUERIES), chance.choice(_HEADERS), tuple(filter(None, pieces)))
