"""Syntax highlighting of job files, and side-by-side comparison. No I/O; pages escape all parts."""

import re
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher

import msgspec

MOST_PAINTED = 100_000  # characters; a longer text is not highlighted
MOST_COMPARED = 500  # lines of a text; a comparison of more would take too long

# Each piece ends with the line or the text, so that nothing is scanned twice.
_PIECE = re.compile(
    r"""(?P<comment>\#[^\n]*|//[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<heredoc><<-?(?P<mark>\w+)\n.*?(?:^[ \t]*(?P=mark)[ \t]*$|\Z))
    |(?P<key>"(?:[^"\\\n]|\\.)*"(?=[ \t]*:))
    |(?P<text>"(?:[^"\\\n]|\\.)*"?)
    |(?P<number>\b\d+(?:\.\d+)?\b)
    |(?P<word>\b(?:true|false|null)\b)
    |(?P<name>[A-Za-z_][\w-]*+(?=[ \t]{0,99}=(?!=)))
    |(?P<block>^[ \t]*+[A-Za-z_][\w-]*+(?=[^\n={]*+\{))
    |[A-Za-z_][\w-]*""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_ALIKE = {"heredoc": "text", "name": "key"}  # kinds of parts with the same style

Piece = tuple[str, str]  # kind and text; the kind of plain text is empty


def highlight(source: str) -> Iterator[Piece]:
    """Yield the parts of a job file in HCL or JSON; together they are the whole text."""
    if len(source) > MOST_PAINTED:
        yield "", source
        return
    position = 0
    for match in _PIECE.finditer(source):
        kind = match.lastgroup
        if kind is None:  # a plain name
            continue
        if match.start() > position:
            yield "", source[position : match.start()]
        yield _ALIKE.get(kind, kind), match[0]
        position = match.end()
    if position < len(source):
        yield "", source[position:]


class SideBySideLine(msgspec.Struct, frozen=True):
    """A line of two texts side by side; a missing line has no number."""

    fate: str  # same, added, deleted, edited
    old_number: int | None
    old: str
    new_number: int | None
    new: str


def side_by_side(old: str, new: str, *, around: int = 3) -> list[SideBySideLine] | None:
    """Return two texts side by side: differences with context, or None if they are too long."""
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > MOST_COMPARED:
        return None
    lines: list[SideBySideLine] = []
    matcher = SequenceMatcher(None, before, after)
    for group in matcher.get_grouped_opcodes(around) if before != after else ():
        if lines:
            lines.append(SideBySideLine("skipped", None, "", None, ""))
        for kind, a, b, c, d in group:
            change = {"equal": "same", "insert": "added", "delete": "deleted"}.get(kind, "edited")
            lines += _rows(change, _numbered(before, a, b), _numbered(after, c, d))
    return lines


def _numbered(lines: list[str], begin: int, end: int) -> list[tuple[int | None, str]]:
    return [(index + 1, lines[index]) for index in range(begin, end)]


def _rows(
    change: str, old: list[tuple[int | None, str]], new: list[tuple[int | None, str]]
) -> Iterable[SideBySideLine]:
    for index in range(max(len(old), len(new))):
        left = old[index] if index < len(old) else (None, "")
        right = new[index] if index < len(new) else (None, "")
        one_sided = {(True, False): "deleted", (False, True): "added"}
        row_change = one_sided.get((left[0] is not None, right[0] is not None), change)
        yield SideBySideLine(row_change, *left, *right)
