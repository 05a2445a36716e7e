r"""Regular expressions in Go syntax, matched in linear time.

Constraints and filters contain user patterns, and no pattern may block the daemon. RE2 guarantees
linear time, and Go uses RE2's syntax. Errors have Go's texts. Only `\B` differs: RE2 tests each
position between two bytes, so `\B` also matches inside a non-ASCII character.

Each search has a time limit, and `limited` limits all work in a block. Times are upper estimates in
microseconds of CPU time, so equal work gives equal results on any host.
"""

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Protocol

from storage.errors import Invalid
from storage.loop_share import spend
from storage.records.numbers import parse_integer

MAX_LENGTH = 10_000  # characters of a pattern: far more than users need
_MAX_MEMORY = 2 * 2**20  # bytes for a pattern and for RE2's search state
_MAX_COMPILED = 32  # cached patterns

# µs of CPU time, as upper limits
_IMPORT = 20_000
_COMPILE = 100
_COMPILE_CHARACTER = 60  # a class of Unicode characters takes the most time
_COMPILE_REPETITION = 15_000  # short patterns with repetitions may reach the memory limit
MAX_SEARCH = 60_000  # limit of one search
MAX_BLOCK = 20_000_000  # limit for all patterns of a job or of a decision
_LEAST_SEARCH = 1  # minimum cost of a search in a block

_SHOWN = 40  # characters of a pattern in an error

# RE2's error texts, with Go's. Texts that are not listed are the same in both.
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
_REFERENCE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")  # a reference to a group in a replacement
_ESCAPE = re.compile(r"\\Q.*?(?:\\E|\Z)|\\(.)", re.DOTALL)  # a quoted text, or one letter


class PatternsTooCostly(Invalid):
    """The patterns in a `limited` block take longer than its limit."""


class _Work:
    """The remaining time of a `limited` block, and the cached results of its searches."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self.results: dict[tuple[str, str], bool] = {}

    def take(self, cost: int) -> None:
        """Subtract a cost from the remaining time. Raises `PatternsTooCostly`."""
        self._left -= cost
        if self._left < 0:
            raise PatternsTooCostly(
                f"the regular expressions take longer than {self._most / 1e6:g} s: "
                "use fewer or shorter expressions, or less repetition"
            )


class _Current(threading.local):
    """The `limited` block in which the current thread runs."""

    work: _Work | None = None


_CURRENT = _Current()


@contextmanager
def limited(most: int = MAX_BLOCK) -> Iterator[None]:
    """Limit the time of compiling and searching in this block to `most` microseconds.

    A search that is repeated in the block costs nothing. Beyond the limit, the functions of this
    module raise `PatternsTooCostly`.
    """
    before, _CURRENT.work = _CURRENT.work, _Work(most)
    try:
        yield
    finally:
        _CURRENT.work = before


class _Match(Protocol):
    """The part of a match's interface that Steward uses."""

    def span(self) -> tuple[int, int]:
        """Return the start and the end of the match."""

    def group(self, key: int) -> bytes | None:
        """Return the text that a group matched; None if the group matched no text."""


class _Pattern(Protocol):
    """The part of a compiled pattern's interface that Steward uses; the library has no types."""

    groups: int
    groupindex: Mapping[bytes, int]  # names of groups
    programsize: int  # instructions

    def search(self, text: bytes) -> object | None:
        """Return the first match in a text, or None."""

    def finditer(self, text: bytes) -> Iterator[_Match]:
        """Yield the non-overlapping matches in a text."""


def pattern_error(pattern: str) -> str | None:
    """Return why a pattern is invalid, with Go's text; None if it is valid.

    Raises `PatternsTooCostly`.
    """
    try:
        _compile(pattern)
    except PatternsTooCostly:
        raise
    except Invalid as error:
        return str(error)
    return None


def search(pattern: str, text: str, most: int | None = MAX_SEARCH) -> bool:
    """Return whether a pattern matches anywhere in a text.

    `most` is the limit of the search in microseconds; None if the caller has counted `match_cost`.
    Raises `Invalid` for a bad pattern or a search beyond the limit, and `PatternsTooCostly`.
    """
    work = _CURRENT.work
    if work is not None and (cached := work.results.get((pattern, text))) is not None:
        return cached
    cost = match_cost(pattern, text)
    if most is not None and cost > most:
        raise Invalid(_too_long(pattern, text, most))
    if work is not None:
        work.take(cost + _LEAST_SEARCH)
    spend(cost)
    is_match = _compile(pattern).search(_encode(text)) is not None
    if work is not None:
        work.results[pattern, text] = is_match
    return is_match


def search_error(pattern: str, text: str) -> str | None:
    """Return why a search would take too long; None if it is permitted. Raises `Invalid`."""
    return None if match_cost(pattern, text) <= MAX_SEARCH else _too_long(pattern, text, MAX_SEARCH)


def _too_long(pattern: str, text: str, most: int) -> str:
    return (
        f"the search of `{pattern[:_SHOWN]}` in {len(text)} characters may take longer than "
        f"{most // 1000} ms: use a shorter pattern or text, or less repetition"
    )


def match_cost(pattern: str, text: str) -> int:
    """Return the maximum duration of a search in a text in microseconds. Raises `Invalid`.

    If a pattern exceeds RE2's memory limit, each character takes up to 10 ns for each instruction.
    """
    size = _compile(pattern).programsize
    length = len(text) if text.isascii() else 4 * len(text)  # bytes at most
    return size // 50 + length * size // 100 + length // 500


def search_cost(pattern: str, length: int) -> int:
    """Return the maximum duration of the searches of `replace`, in microseconds.

    `length` is the length of the text. If a pattern exceeds RE2's memory limit, the search executes
    its instructions one by one for each character. Raises `Invalid`.
    """
    return length * (2 + _compile(pattern, captures=True).programsize // 100)


def replace(
    pattern: str, replacement: str, text: str, check: Callable[[int], None] = lambda _: None
) -> str:
    """Return a text with all matches of a pattern replaced.

    In the replacement, `$1` and `${name}` expand to the text of a group, and `$$` to a dollar sign.
    `check` gets the length of the result after each replacement, and may raise. Raises `Invalid`
    for a bad pattern.
    """
    compiled = _compile(pattern, captures=True)
    parts = list(_replacement_parts(replacement, compiled))
    source, copied, length = _encode(text), 0, 0
    pieces: list[bytes] = []
    for match in compiled.finditer(source):
        start, end = match.span()
        if start == end and (_is_inside(source, start) or (start == copied and pieces)):
            continue  # Go: no replacement inside a character, or directly after a match
        pieces += [source[copied:start], *[_filled(part, match) for part in parts]]
        copied = end
        length += sum(map(len, pieces[-1 - len(parts) :]))
        check(length)
    return b"".join([*pieces, source[copied:]]).decode(errors="surrogatepass")


def _is_inside(text: bytes, offset: int) -> bool:
    """Return whether an offset is inside a UTF-8 character. RE2 also matches at such offsets."""
    return offset < len(text) and text[offset] & 0xC0 == 0x80


def _filled(part: bytes | int, match: _Match) -> bytes:
    return part if isinstance(part, bytes) else match.group(part) or b""


def _replacement_parts(replacement: str, compiled: _Pattern) -> Iterator[bytes | int]:
    """Yield the literal texts and the group numbers of a replacement."""
    position = 0
    for match in _REFERENCE.finditer(replacement):
        yield _encode(replacement[position : match.start()])
        position = match.end()
        name = match[1] or match[2]
        if name is None:
            yield b"$"
        elif name.isdecimal():
            if parse_integer(name) <= compiled.groups:
                yield parse_integer(name)
        elif (number := compiled.groupindex.get(_encode(name))) is not None:
            yield number
    yield _encode(replacement[position:])


@lru_cache(maxsize=_MAX_COMPILED)
def _compile(pattern: str, *, captures: bool = False) -> _Pattern:
    if len(pattern) > MAX_LENGTH:
        raise _refusal(_TOO_LARGE, f"{pattern[:20]}...")
    cost = _compile_cost(pattern)
    if _CURRENT.work is not None:
        _CURRENT.work.take(cost)
    spend(cost)
    import re2  # a large library, and few jobs have patterns

    options = re2.Options()
    options.log_errors = False  # errors are raised instead
    options.max_mem = _MAX_MEMORY
    options.never_capture = not captures  # capturing groups takes time
    try:
        compiled: _Pattern = re2.compile(_encode(pattern), options)
    except re2.error as error:
        raise _in_go(error.args[0].decode(errors="replace"), pattern) from error
    if _CURRENT.work is not None:
        _CURRENT.work.take(_compiled_cost(compiled.programsize) - cost)
    re2.purge()  # the library also caches patterns, four times as many
    _require_go(pattern, compiled)
    return compiled


def _compile_cost(pattern: str) -> int:
    """Return the maximum duration of compiling a pattern in microseconds, even if it is invalid."""
    cost = _COMPILE + _COMPILE_CHARACTER * len(pattern)
    if "{" in pattern:
        cost += _COMPILE_REPETITION
    return cost if "re2" in sys.modules else cost + _IMPORT


def _compiled_cost(size: int) -> int:
    """Return the duration of compiling a pattern to `size` instructions, in microseconds."""
    return _COMPILE + 2 * size // 5


def _encode(text: str) -> bytes:
    """Encode a text for RE2. An unpaired surrogate, from invalid input, counts as a character."""
    return text.encode(errors="surrogatepass")


# --- Go's error texts ---


def _refusal(problem: str, where: str) -> Invalid:
    return Invalid(f"error parsing regexp: {problem}: `{where}`")


def _in_go(message: str, pattern: str) -> Invalid:
    """Return an error with Go's message that corresponds to a message of RE2."""
    problem, _, where = message.partition(": ")
    if problem.startswith("pattern too large"):
        return _refusal(_TOO_LARGE, pattern)
    if where in _LOOK_BEHIND:  # Go treats it as the start of a name
        _, _, name = pattern.partition(where)
        end = name.find(">") + 1 or len(name)
        return _refusal("invalid named capture", where + name[:end])
    return _refusal(_IN_GO.get(problem, problem), where)


def _require_go(pattern: str, compiled: _Pattern) -> None:
    """Raise `Invalid` for syntax that only RE2 accepts: byte escapes and non-ASCII names."""
    if "C" in _ESCAPE.findall(pattern):
        raise _refusal("invalid escape sequence", r"\C")
    for name in compiled.groupindex:
        if not name.isascii():
            group = f"<{name.decode()}>"
            opening = f"(?P{group}" if f"(?P{group}" in pattern else f"(?{group}"
            raise _refusal("invalid named capture", opening)
