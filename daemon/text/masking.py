"""Masking of secrets in the output of tasks, without a change of length. No I/O.

A secret is found as it is, percent-encoded, and in base64 at each of the three offsets at which it
can begin. A value below 8 bytes is not masked, because it would mask ordinary words. In a value
with several lines, each line that is long enough counts as a secret, because programs print files
by line. A mask has as many bytes as the secret, so that log offsets stay valid.
"""

import base64
from collections.abc import Iterable, Iterator
from urllib.parse import quote_from_bytes

LEAST = 8  # bytes; a shorter value is not masked
_OPENING, _CLOSING = "‹".encode(), "›".encode()
_WORD = b"masked"
_FILL = b"*"
_FEW = 400  # forms of secrets
_KEPT = 1000  # secrets of one kind, a limit for a variable that changes every minute


class TaskSecrets:
    """The secrets that a task received, oldest first; beyond 1000 the oldest is dropped."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}

    def add(self, secret: str) -> None:
        """Add a secret as the newest one."""
        self._known.pop(secret, None)
        self._known[secret] = None
        if len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]

    def __iter__(self) -> Iterator[bytes]:
        """Yield the secrets as bytes."""
        return (secret.encode(errors="replace") for secret in self._known)


class Matcher:
    """A search for secrets in bytes, with masking."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        found = {form for secret in secrets for one in _parts(secret) for form in _forms(one)}
        self._forms = sorted((one for one in found if len(one) >= LEAST), key=len, reverse=True)
        self.longest = len(self._forms[0]) if self._forms else 0
        self.is_quick = len(self._forms) <= _FEW  # 16 KiB take less than 2 ms

    def mask(self, data: bytes, *, is_cut: bool = False) -> bytes:
        """Return bytes of the same length, with every secret masked.

        `is_cut` says that `data` is a piece of a longer text. Then the first and last bytes are
        also masked if they are 8 or more bytes of a secret.
        """
        spans = self._whole(data)
        if is_cut:
            spans += self._cut(data)
        spans.sort(key=lambda span: (span[0], -span[1]))
        pieces, at = [], 0
        for begin, end in spans:
            if end <= max(at, begin):
                continue
            # If secrets overlap, only the remaining part of the second one follows.
            pieces.append(data[at:begin] if begin >= at else b"")
            pieces.append(mask_of(end - begin) if begin >= at else _FILL * (end - at))
            at = end
        return b"".join((*pieces, data[at:]))

    def _whole(self, data: bytes) -> list[tuple[int, int]]:
        return [(at, at + len(form)) for form in self._forms for at in _places(data, form)]

    def _cut(self, data: bytes) -> list[tuple[int, int]]:
        """Return for each form at most one span at each end: the longest partial match."""
        if len(data) < LEAST:
            return []
        spans = []
        for form in self._forms:
            heads = (len(form) - at for at in _places(form, data[:LEAST]))
            head = max((size for size in heads if data.startswith(form[-size:])), default=0)
            tails = (at + LEAST for at in _places(form, data[-LEAST:]))
            tail = max((size for size in tails if data.endswith(form[:size])), default=0)
            spans += [(0, head), (len(data) - tail, len(data))]
        return spans

    def mask_text(self, text: str) -> str:
        """Return a text with every secret masked."""
        return self.mask(text.encode(errors="replace")).decode(errors="replace")


def mask_of(length: int) -> bytes:
    """Return a mask of at least 8 bytes.

    >>> [mask_of(n).decode() for n in (8, 12, 15)]
    ['‹**›', '‹masked›', '‹masked***›']
    """
    inner = length - len(_OPENING) - len(_CLOSING)
    word = _WORD if inner >= len(_WORD) else b""
    return _OPENING + word.ljust(inner, _FILL) + _CLOSING


def _places(data: bytes, form: bytes) -> Iterator[int]:
    at = data.find(form)
    while at >= 0:
        yield at
        at = data.find(form, at + 1)


def _parts(secret: bytes) -> Iterator[bytes]:
    """Yield a secret without surrounding space, and each of its lines if there are several."""
    whole = secret.strip()
    if len(whole) < LEAST:
        return
    yield whole
    if b"\n" in whole:
        yield from (line for part in whole.splitlines() if len(line := part.strip()) >= LEAST)


def _forms(secret: bytes) -> Iterator[bytes]:
    yield secret
    for safe in ("", "/"):
        encoded = quote_from_bytes(secret, safe=safe).encode()
        yield encoded
        yield encoded.replace(b"%20", b"+")
    for before in range(3):
        yield from _base64(secret, before)


def _base64(secret: bytes, before: int) -> Iterator[bytes]:
    """Yield the base64 digits that depend on the secret alone.

    `before` is the offset of the secret within a group of three bytes.
    """
    digits = base64.b64encode(b"\0" * before + secret)
    first = -(-before * 8 // 6)  # the first digit also holds bits of the preceding byte
    last = (before + len(secret)) * 8 // 6
    yield digits[first:last]
    yield digits[first:last].translate(bytes.maketrans(b"+/", b"-_"))
