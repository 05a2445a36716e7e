"""Masking of secrets in the output of tasks. No I/O.

A secret is found unencoded, percent-encoded, and in base64 at each of the three offsets at which it
can begin. A value of less than 8 bytes is not masked, because ordinary words may contain it. In a
value with several lines, each line that is long enough counts as a secret, because programs print
files by line. A mask has as many bytes as the secret, so that log offsets stay valid.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Protocol, cast
from urllib.parse import quote_from_bytes

LEAST = 8  # bytes; a shorter value is not masked
_OPENING, _CLOSING = "‹".encode(), "›".encode()
_WORD = b"masked"
_FILL = b"*"
_MASK = re.compile(r"‹(?:masked\**|\*{2,5})›")
_MASK_BEGIN, _MASK_WORD, _MASK_END = "‹", "‹masked", "›"
_NO_FILL = re.compile(r"[^*]")
_SEARCHED_AT_ONCE = 64 * 1024  # bytes or characters per search, during which no other thread runs
_FEW = 400  # forms that are searched for in 16 KiB within 2 ms
_MOST_BYTES = 1024 * 1024  # bytes of all secrets of one kind
_KEPT = 1000  # secrets of one kind; a variable may get a new value every minute
# Forms of one matcher: enough for 1000 secrets, not counting single lines of secrets.
_MOST_FORMS = 20_000
_KEY = 8  # bytes of a form that the pattern finds; the rest is compared
_SAMPLE = 5  # minimum bytes of a form that remain in a sample
_SEARCHED = 32  # first bytes of a form among which its key is chosen
# Bytes of text per candidate; if there are more candidates, the rest of the text is masked.
_DENSITY = 16
_ALWAYS = 64  # candidates that a text of any length may have
_PIECE = 2000  # keys of one pattern; compiling it blocks other threads for less than 5 ms
_MEMORY = 12 * 1024 * 1024  # bytes for the states of one pattern; with more, compiling is slower

Span = tuple[int, int]


class TaskSecrets:
    """The secrets that a task received, oldest first.

    `drop_oldest` keeps at most 1000 secrets with at most 1 MiB in total.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known: dict[str, None] = {}
        self._size = 0
        for secret in secrets:
            self.add(secret)

    @property
    def is_full(self) -> bool:
        """Return whether `drop_oldest` has something to drop."""
        return len(self._known) > _KEPT or (self._size > _MOST_BYTES and len(self._known) > 1)

    def add(self, secret: str) -> bool:
        """Add a secret as the newest secret; return whether it was unknown."""
        is_new = secret not in self._known
        if is_new:
            self._size += len(secret)
        self._known.pop(secret, None)
        self._known[secret] = None
        return is_new

    def drop_oldest(self, in_use: Iterable[str] = ()) -> None:
        """Drop the oldest secrets beyond the limits.

        Secrets that are `in_use` become the newest secrets. They are dropped only if they alone
        exceed the limits.
        """
        for secret in in_use:
            if secret in self._known:
                self.add(secret)
        while self.is_full:
            oldest = next(iter(self._known))
            self._size -= len(oldest)
            del self._known[oldest]

    @property
    def values(self) -> list[str]:
        """Return the secrets, oldest first."""
        return [*self._known]

    def __iter__(self) -> Iterator[bytes]:
        """Yield the secrets as bytes."""
        return (secret.encode(errors="replace") for secret in self._known)


class _Search(Protocol):
    """A compiled pattern."""

    def search(self, text: bytes, pos: int = 0) -> "_Found | None": ...


class _Found(Protocol):
    """A match of a pattern."""

    def start(self) -> int: ...


class Matcher:
    """Finds secrets in bytes, and masks them.

    A secret has several forms, such as base64. All secrets together have at most 20,000 forms.
    Eight bytes of each form are its key. Each compiled pattern searches for the keys of up to 2000
    forms. Where a key is found, the whole form is compared.

    The constructor takes the secrets from the oldest to the newest. If there are too many forms,
    whole secrets have priority over single lines of secrets, and newer secrets over older secrets.
    """

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._forms = sorted(_bounded_forms([*secrets]), key=len, reverse=True)
        self.longest = len(self._forms[0]) if self._forms else 0
        self.is_quick = len(self._forms) <= _FEW  # 16 KiB take less than 2 ms
        self._by_key: dict[bytes, list[tuple[bytes, int]]] = {}
        for form in self._forms:
            offset = _best_key(form)
            key = form[offset : offset + _KEY]
            self._by_key.setdefault(key, []).append((form, offset))
        self._patterns = _compile(self._by_key)
        # A search in only every second or fourth byte shows quickly that a text has no secret.
        self._step = _step(self._forms) if self._forms else 1
        self._sampled = _compile(_samples(self._forms, self._step)) if self._step > 1 else ()

    @property
    def weight(self) -> int:
        """Return the number of forms to search for; each form costs memory and time."""
        return len(self._forms)

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to mask."""
        return not self._forms

    def warm(self) -> None:
        """Search once, so that the patterns build their states. Later searches are then faster."""
        text = b"".join(self._forms)
        for pattern in self._patterns:
            pattern.search(text[1:])
        for pattern in self._sampled:
            pattern.search(text[:: self._step])

    def may_match(self, data: bytes) -> bool:
        """Return whether `data` may contain a secret; false means that it contains no secret."""
        sample = data[:: self._step]
        return any(
            pattern.search(sample) is not None for pattern in self._sampled or self._patterns
        )

    def mask(self, data: bytes, *, is_cut: bool = False) -> bytes:
        """Return bytes of the same length, with every secret masked.

        With `is_cut`, `data` is a piece of a longer text. Then the first and last bytes are also
        masked if they are 8 or more bytes of a secret.
        """
        spans = self._whole(data)
        if is_cut:
            spans += self._heads(data) + self._tails(data)
        return _masked(data, [(max(0, begin), min(end, len(data))) for begin, end in spans])

    def mask_part(
        self, data: bytes, begin: int, end: int, *, at_start: bool, at_end: bool
    ) -> bytes:
        """Return the bytes of `data` from `begin` to `end`, masked; the other bytes are context.

        Because of the context, two adjacent parts show one mask for a secret that spans them.
        `at_start` and `at_end` mean that nothing is known about the text before or after `data`.
        """
        spans = self._whole(data)
        if at_start:
            spans += self._heads(data)
        if at_end:
            spans += self._tails(data)
        return _masked(data, spans)[begin:end]

    def mask_text(self, text: str) -> str:
        """Return a text with every secret masked."""
        return self.mask(text.encode(errors="replace")).decode(errors="replace")

    def _whole(self, data: bytes) -> list[Span]:
        """Return the positions of all secrets.

        A candidate is a position at which a key is found. Ordinary text has at most one candidate
        per 16 bytes. In a text with more candidates, the rest counts as one secret, to limit the
        time. The rest begins at the first position at which a secret with a later key can begin.
        """
        if not self.may_match(data):
            return []
        spans: list[Span] = []
        left = _ALWAYS + len(data) // _DENSITY
        for position in self._candidates(data):
            spans += self._secrets_at(data, position)
            left -= 1
            if not left:
                return [*spans, (max(0, position + 1 - _SEARCHED), len(data))]
        return spans

    def _candidates(self, data: bytes) -> Iterator[int]:
        """Yield, in order, the positions in `data` at which the key of a secret is found."""
        matches = [
            (match.start(), number)
            for number, pattern in enumerate(self._patterns)
            if (match := pattern.search(data)) is not None
        ]
        heapify(matches)
        while matches:
            position, number = matches[0]
            yield position
            match = self._patterns[number].search(data, position + 1)
            if match is None:
                heappop(matches)
            else:
                heapreplace(matches, (match.start(), number))

    def _secrets_at(self, data: bytes, position: int) -> Iterator[Span]:
        """Yield the span of each secret whose key begins at `position`."""
        for form, offset in self._by_key.get(data[position : position + _KEY], ()):
            if position >= offset and data.startswith(form, position - offset):
                yield position - offset, position - offset + len(form)

    def _heads(self, data: bytes) -> list[Span]:
        """Return the spans of forms whose last bytes are at the start of `data`."""
        spans = []
        for form in self._forms if len(data) >= LEAST else ():
            sizes = (len(form) - position for position in _positions(form, data[:LEAST]))
            size = max((size for size in sizes if data.startswith(form[-size:])), default=0)
            if size:
                spans.append((size - len(form), size))
        return spans

    def _tails(self, data: bytes) -> list[Span]:
        """Return the spans of forms whose first bytes are at the end of `data`."""
        spans = []
        for form in self._forms if len(data) >= LEAST else ():
            sizes = (position + LEAST for position in _positions(form, data[-LEAST:]))
            size = max((size for size in sizes if data.endswith(form[:size])), default=0)
            if size:
                spans.append((len(data) - size, len(data) - size + len(form)))
        return spans


def _masked(data: bytes, spans: list[Span]) -> bytes:
    """Return `data` with each span masked. A span may extend beyond the ends of `data`."""
    if not spans:
        return data
    ordered = sorted(spans, key=lambda span: (span[0], -span[1]))
    masked, covered = bytearray(data), ordered[0][0]
    for begin, end in ordered:
        if end <= covered:
            continue
        # If secrets overlap, only the remaining part of the second secret gets another mask.
        is_apart = begin >= covered
        start = begin if is_apart else covered
        mask = mask_of(end - begin) if is_apart else _FILL * (end - covered)
        first, last = max(start, 0), min(end, len(data))
        masked[first:last] = mask[first - start : last - start]
        covered = end
    return bytes(masked)


def _compile(keys: Iterable[bytes]) -> tuple[_Search, ...]:
    """Return patterns that together find any key, each in linear time."""
    pieces = [*_divide_keys(keys)]
    if not pieces:
        return ()
    # Imported late: a daemon without secrets of tasks never needs it.
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = _MEMORY
    return tuple(
        cast(_Search, re2.compile(b"|".join(map(re2.escape, key_list)), options))
        for key_list in pieces
    )


def _divide_keys(keys: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield sorted lists of keys, one list for each pattern.

    A pattern is faster if its keys are similar. Sorting all keys in one call would hold the GIL too
    long.
    """
    by_first: dict[int, list[bytes]] = {}
    for key in keys:
        by_first.setdefault(key[0], []).append(key)
    key_list: list[bytes] = []
    for first in sorted(by_first):
        for key in sorted(by_first[first]):
            key_list.append(key)
            if len(key_list) == _PIECE:
                yield key_list
                key_list = []
    if key_list:
        yield key_list


def _step(forms: Sequence[bytes]) -> int:
    """Return the step n of a quick search, which looks only at every n-th byte.

    At least five bytes of each form of a secret remain. A step of n needs n samples for each form.
    At most 20,000 samples fit into the memory of the pattern. With more, the search would be slow.
    """
    shortest, most = len(forms[-1]), _MOST_FORMS // len(forms)
    return next((step for step in (4, 2) if step <= most and shortest >= step * _SAMPLE), 1)


def _samples(forms: Iterable[bytes], step: int) -> set[bytes]:
    """Return the bytes of each form that remain if only every `step`-th byte is searched."""
    return {form[first::step][:_KEY] for form in forms for first in range(step)}


def _best_key(form: bytes) -> int:
    """Return the position of the key in a form of a secret.

    The key is the eight successive bytes with the most different values. It begins near the start
    of the form. Of equally good positions, the last one is returned. Many secrets, such as
    addresses and signed tokens, begin alike, and other texts also contain these beginnings.
    """
    last = min(len(form) - _KEY, _SEARCHED)
    return max(
        range(0, last + 1, 4),
        key=lambda position: (len({*form[position : position + _KEY]}), position),
    )


def mask_of(length: int) -> bytes:
    """Return a mask of at least 8 bytes.

    >>> [mask_of(n).decode() for n in (8, 12, 15)]
    ['‹**›', '‹masked›', '‹masked***›']
    """
    inner = length - len(_OPENING) - len(_CLOSING)
    word = _WORD if inner >= len(_WORD) else b""
    return _OPENING + word.ljust(inner, _FILL) + _CLOSING


def find_mask(value: object, path: str = "") -> str:
    """Return the path of the first text with a mask in decoded JSON, or an empty string.

    >>> find_mask({"Env": {"KEY": "key=‹masked›"}})
    'Env.KEY'
    """
    waiting = [(path, value)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            if _has_mask(value):
                return path
        elif isinstance(value, Mapping):
            waiting += [
                (f"{path}.{key}".lstrip("."), member) for key, member in [*value.items()][::-1]
            ]
        elif isinstance(value, list):
            waiting += [
                (f"{path}[{index}]", element) for index, element in [*enumerate(value)][::-1]
            ]
    return ""


def _has_mask(text: str) -> bool:
    """Return whether a string has a mask. The search begins only where a mask may begin."""
    position = text.find(_MASK_BEGIN)
    while position >= 0:
        end = position + _SEARCHED_AT_ONCE
        if _MASK.search(text, position, end):
            return True
        last = text.rfind(_MASK_BEGIN, position + 1, end)
        if last < 0:  # the mask is longer than the searched piece
            if _is_long_mask(text, position):
                return True
            last = text.find(_MASK_BEGIN, end)
        position = last if end < len(text) else -1
    return False


def _is_long_mask(text: str, position: int) -> bool:
    """Return whether a mask of at most 1 MiB begins in a text at a position.

    The search is divided into parts, because a single pattern match would hold the GIL for 12 ms.
    """
    if not text.startswith(_MASK_WORD, position):
        return False
    first, last = position + len(_MASK_WORD), position + _MOST_BYTES
    for begin in range(first, last, _SEARCHED_AT_ONCE):
        if (
            match := _NO_FILL.search(text, begin, min(begin + _SEARCHED_AT_ONCE, last))
        ) is not None:
            return match[0] == _MASK_END
    return False


def may_have_mask(text: bytes) -> bool:
    """Return whether a JSON text may contain a mask; false means that it contains no mask."""
    return any(
        text.find(opening, first, first + _SEARCHED_AT_ONCE + len(opening)) >= 0
        for first in range(0, len(text), _SEARCHED_AT_ONCE)
        for opening in (_OPENING, b"\\u2039")
    )


def _positions(data: bytes, form: bytes) -> Iterator[int]:
    position = data.find(form)
    while position >= 0:
        yield position
        position = data.find(form, position + 1)


def _bounded_forms(secrets: Sequence[bytes]) -> list[bytes]:
    """Return the forms of secrets. If there are too many, omit those with the least priority."""
    newest = [states for secret in reversed(secrets) if len(states := secret.strip()) >= LEAST]
    parts = chain(newest, chain.from_iterable(map(_lines, newest)))
    forms = (form for part in parts for form in _forms(part) if len(form) >= LEAST)
    selected: dict[bytes, None] = {}
    for form in forms:
        selected[form] = None
        if len(selected) >= _MOST_FORMS:
            break
    return [*selected]


def _lines(secret: bytes) -> Iterator[bytes]:
    """Yield each line of a secret with several lines."""
    if b"\n" in secret:
        yield from (line for part in secret.splitlines() if len(line := part.strip()) >= LEAST)


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
