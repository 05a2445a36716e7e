r"""Regular expressions as Go reads them, matched in time that grows only with the text.

Constraints and filters bring patterns from outside, so no pattern may keep the daemon busy. RE2
is made for this, and Go's syntax is RE2's; what is said of a pattern that cannot be read is Go's.
Only `\B` differs: RE2 looks between bytes, where it also holds inside a character beyond ASCII.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Protocol

from storage.errors import Invalid
from storage.records.numbers import whole

MAX_LENGTH = 10_000  # characters of a pattern: far more than a person writes
_MAX_MEMORY = 2 * 2**20  # bytes for a pattern and for what RE2 remembers while it searches
_MAX_COMPILED = 32  # patterns kept

# RE2's words: Go's. What is missing here is called the same.
_IN_GO = {
    "bad repetition operator": "invalid nested repetition operator",
    "invalid named capture group": "invalid named capture",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "trailing \\": "trailing backslash at end of expression",
}
_TOO_LARGE = "expression too large"
_LOOK_BEHIND = ("(?<=", "(?<!")
_REFERENCE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")  # in a replacement
_ESCAPE = re.compile(r"\\Q.*?(?:\\E|\Z)|\\(.)", re.DOTALL)  # what is quoted, or one letter


class _Match(Protocol):
    """What is used of a match."""

    def span(self) -> tuple[int, int]:
        """Return where the match starts and ends."""

    def group(self, key: int) -> bytes | None:
        """Return what a group matched."""


class _Pattern(Protocol):
    """What is used of a compiled pattern; the library brings no types."""

    groups: int
    groupindex: Mapping[bytes, int]  # the names of groups
    programsize: int  # instructions

    def search(self, text: bytes) -> object | None:
        """Return the first match in a text."""

    def finditer(self, text: bytes) -> Iterator[_Match]:
        """Yield the matches in a text that do not overlap."""


def problem(pattern: str) -> str | None:
    """Return why a pattern cannot be used, in Go's words; None when it can."""
    try:
        _compile(pattern)
    except Invalid as error:
        return str(error)
    return None


def search(pattern: str, text: str) -> bool:
    """Tell whether a pattern matches anywhere in a text. Raises `Invalid` when it is none."""
    return _compile(pattern).search(_encode(text)) is not None


def effort(pattern: str, length: int) -> int:
    """Return at most how many microseconds replacing takes in a text. Raises `Invalid`.

    A pattern that remembers too much is searched for one instruction at a time, at each character.
    """
    return length * (2 + _compile(pattern, captures=True).programsize // 100)


def replace(
    pattern: str, replacement: str, text: str, check: Callable[[int], None] = lambda _: None
) -> str:
    """Return a text with all matches of a pattern replaced.

    In the replacement, `$1` and `${name}` stand for what a group matched, `$$` for a dollar.
    `check` is told the length of the result while it grows. Raises `Invalid` for no pattern.
    """
    compiled = _compile(pattern, captures=True)
    parts = list(_replacement_parts(replacement, compiled))
    source, copied, length = _encode(text), 0, 0
    pieces: list[bytes] = []
    for match in compiled.finditer(source):
        start, end = match.span()
        if start == end and (_is_inside(source, start) or (start == copied and pieces)):
            continue  # Go: nothing is replaced inside a character, or right behind a match
        pieces += [source[copied:start], *[_filled(part, match) for part in parts]]
        copied = end
        length += sum(map(len, pieces[-1 - len(parts) :]))
        check(length)
    return b"".join([*pieces, source[copied:]]).decode(errors="surrogatepass")


def _is_inside(text: bytes, at: int) -> bool:
    """Tell whether a place is inside a character: RE2 looks between bytes."""
    return at < len(text) and text[at] & 0xC0 == 0x80


def _filled(part: bytes | int, match: _Match) -> bytes:
    return part if isinstance(part, bytes) else match.group(part) or b""


def _replacement_parts(replacement: str, compiled: _Pattern) -> Iterator[bytes | int]:
    """Yield the texts and the numbers of groups of which a replacement is made."""
    position = 0
    for match in _REFERENCE.finditer(replacement):
        yield _encode(replacement[position : match.start()])
        position = match.end()
        name = match[1] or match[2]
        if name is None:
            yield b"$"
        elif name.isdecimal():
            if whole(name) <= compiled.groups:
                yield whole(name)
        elif (number := compiled.groupindex.get(_encode(name))) is not None:
            yield number
    yield _encode(replacement[position:])


@lru_cache(maxsize=_MAX_COMPILED)
def _compile(pattern: str, *, captures: bool = False) -> _Pattern:
    if len(pattern) > MAX_LENGTH:
        raise _refusal(_TOO_LARGE, f"{pattern[:20]}...")
    import re2  # a large library, and few jobs name a pattern

    options = re2.Options()
    options.log_errors = False  # they are raised
    options.max_mem = _MAX_MEMORY
    options.never_capture = not captures  # finding groups takes time
    try:
        compiled: _Pattern = re2.compile(_encode(pattern), options)
    except re2.error as error:
        raise _in_go(error.args[0].decode(errors="replace"), pattern) from error
    re2.purge()  # the library keeps patterns too, four times as many
    _require_go(pattern, compiled)
    return compiled


def _encode(text: str) -> bytes:
    """Return a text for RE2; half a surrogate pair, from broken input, is a character too."""
    return text.encode(errors="surrogatepass")


# ---- what Go says ------------------------------------------------------------------------------


def _refusal(what: str, where: str) -> Invalid:
    return Invalid(f"error parsing regexp: {what}: `{where}`")


def _in_go(said: str, pattern: str) -> Invalid:
    """Return what Go says where RE2 says this."""
    what, _, where = said.partition(": ")
    if what.startswith("pattern too large"):
        return _refusal(_TOO_LARGE, pattern)
    if where in _LOOK_BEHIND:  # Go takes it for the beginning of a name
        _, _, name = pattern.partition(where)
        end = name.find(">") + 1 or len(name)
        return _refusal("invalid named capture", where + name[:end])
    return _refusal(_IN_GO.get(what, what), where)


def _require_go(pattern: str, compiled: _Pattern) -> None:
    """Raise `Invalid` for what RE2 accepts and Go does not: bytes, and names beyond ASCII."""
    if "C" in _ESCAPE.findall(pattern):
        raise _refusal("invalid escape sequence", r"\C")
    for name in compiled.groupindex:
        if not name.isascii():
            group = f"<{name.decode()}>"
            opening = f"(?P{group}" if f"(?P{group}" in pattern else f"(?{group}"
            raise _refusal("invalid named capture", opening)
