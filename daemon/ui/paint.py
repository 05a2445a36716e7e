"""Job files in colours, and two of them side by side. Pure; pages escape every piece themselves."""

import re
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher

import msgspec

MOST_PAINTED = 100_000  # characters; a longer text is shown as it is
MOST_COMPARED = 500  # lines of a text: more would take longer than a page may

# Each piece ends where it must, with the line or with the text: nothing is searched for twice.
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
_ALIKE = {"heredoc": "text", "name": "key"}  # what looks alike

Piece = tuple[str, str]  # what it is, empty for nothing special, and its text


def pieces(source: str) -> Iterator[Piece]:
    """Yield the pieces of a job file, HCL or JSON, which make it up together."""
    if len(source) > MOST_PAINTED:
        yield "", source
        return
    at = 0
    for found in _PIECE.finditer(source):
        kind = found.lastgroup
        if kind is None:  # a name that is nothing special
            continue
        if found.start() > at:
            yield "", source[at : found.start()]
        yield _ALIKE.get(kind, kind), found[0]
        at = found.end()
    if at < len(source):
        yield "", source[at:]


class Line(msgspec.Struct, frozen=True):
    """A line of two texts beside each other; one that is missing has no number."""

    fate: str  # same, added, deleted, edited
    old_number: int | None
    old: str
    new_number: int | None
    new: str


def beside(old: str, new: str, *, around: int = 3) -> list[Line] | None:
    """Return two texts side by side: what differs, with lines around it; None if they are too long."""
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > MOST_COMPARED:
        return None
    lines: list[Line] = []
    matcher = SequenceMatcher(None, before, after)
    for group in matcher.get_grouped_opcodes(around) if before != after else ():
        if lines:
            lines.append(Line("skipped", None, "", None, ""))
        for kind, a, b, c, d in group:
            fate = {"equal": "same", "insert": "added", "delete": "deleted"}.get(kind, "edited")
            lines += _rows(fate, _numbered(before, a, b), _numbered(after, c, d))
    return lines


def _numbered(lines: list[str], begin: int, end: int) -> list[tuple[int | None, str]]:
    return [(at + 1, lines[at]) for at in range(begin, end)]


def _rows(
    fate: str, old: list[tuple[int | None, str]], new: list[tuple[int | None, str]]
) -> Iterable[Line]:
    for at in range(max(len(old), len(new))):
        left = old[at] if at < len(old) else (None, "")
        right = new[at] if at < len(new) else (None, "")
        fates = {(True, False): "deleted", (False, True): "added"}
        mine = fates.get((left[0] is not None, right[0] is not None), fate)
        yield Line(mine, *left, *right)
