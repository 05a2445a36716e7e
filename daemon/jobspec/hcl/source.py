"""Source texts, and diagnostics with their positions.

Positions are offsets. Lines and columns are computed only for errors. Both start at 1, and a column
is one grapheme cluster.
"""

from collections.abc import Iterable, Sequence

import msgspec

from daemon.jobspec.hcl import graphemes
from storage.errors import Malformed

MAX_SHOWN = 20  # errors per text
_MAX_WIDTH = 120  # characters shown of a source line
# Characters at the beginning of a line for which a column counts grapheme clusters; later ones count
# separately, because clusters take a second per megabyte.
_MOST_CLUSTERS = 2_000


class SourceText(msgspec.Struct, frozen=True):
    """A text, and the name that error messages use for it."""

    name: str
    text: str

    def place(self, offset: int) -> tuple[int, int]:
        """Return the line and the column of an offset."""
        line_start = self.text.rfind("\n", 0, offset) + 1
        beginning = self.text[line_start : min(offset, line_start + _MOST_CLUSTERS)]
        column = graphemes.count(beginning) + offset - line_start - len(beginning) + 1
        return self.text.count("\n", 0, offset) + 1, column

    def line_at(self, offset: int) -> tuple[str, int]:
        """Return the line at an offset, without its end, and the offset of its first character."""
        start = self.text.rfind("\n", 0, offset) + 1
        end = self.text.find("\n", offset)
        return self.text[start : len(self.text) if end < 0 else end].rstrip("\r"), start


_UNKNOWN_ATTRIBUTE = "Unsupported attribute"


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True):
    """An error: its position, a summary and a detail.

    An echo is an error that Nomad reports again for an expression that has already failed. Echoes
    are shown only to compare the errors with Nomad's.
    """

    summary: str
    detail: str = ""
    source: SourceText | None = None
    start: int = 0
    end: int = 0
    is_echo: bool = False

    def __str__(self) -> str:
        message = f"{self.summary}; {self.detail}" if self.detail else self.summary
        return f"{self.where}: {message}"

    def for_people(self) -> str:
        """Return the diagnostic as text.

        The text omits `<nil>: `, which Nomad writes if there is no position.
        """
        return str(self).removeprefix("<nil>: ")

    @property
    def where(self) -> str:
        """Return file, line and columns in Nomad's format."""
        if self.source is None:
            return "<nil>"
        line, column = self.source.place(self.start)
        end_line, end_column = self.source.place(self.end)
        if line == end_line:
            return f"{self.source.name}:{line},{column}-{end_column}"
        return f"{self.source.name}:{line},{column}-{end_line},{end_column}"

    def excerpt(self) -> str:
        """Return the line of the error with a marker below it; empty without a position."""
        if self.source is None:
            return ""
        line, line_start = self.source.line_at(self.start)
        before = self.start - line_start
        length = max(1, min(self.end, line_start + len(line)) - self.start)
        cut = max(0, before + min(length, _MAX_WIDTH // 2) - _MAX_WIDTH)
        excerpt = line[cut : cut + _MAX_WIDTH]
        blank = "".join("\t" if char == "\t" else " " for char in line[cut:before])
        mark = "^" * min(length, max(1, _MAX_WIDTH - (before - cut)))
        number = str(self.source.place(self.start)[0])
        return f"  {number} | {excerpt}\n  {' ' * len(number)} | {blank}{mark}"

    def hint(self) -> str:
        """Return a hint if the error is an undeclared variable; otherwise an empty string."""
        if self.source is None or self.summary != _UNKNOWN_ATTRIBUTE:
            return ""
        if not self.source.text[: self.start].endswith("var"):
            return ""
        name = self.source.text[self.start : self.end].lstrip(".")
        return f'  the file declares no variable {name}; declare it with: variable "{name}" {{}}'


class HclError(Malformed):
    """Parsing or evaluation failed. `diagnostics` lists the errors in order."""

    def __init__(self, diagnostics: Iterable[Diagnostic], before: str = "") -> None:
        super().__init__()
        self.diagnostics = tuple(diagnostics)
        self.before = before

    def __str__(self) -> str:
        return self._listed(
            [str(diagnostic) for diagnostic in self.diagnostics[:MAX_SHOWN]], self.diagnostics
        )

    def explained(self) -> str:
        """Return the error for users: with the line of each diagnostic, and without echoes."""
        causes = [diagnostic for diagnostic in self.diagnostics if not diagnostic.is_echo]
        diagnostics = [
            f"{cause.for_people()}\n{cause.excerpt()}\n{cause.hint()}".rstrip("\n")
            for cause in causes[:MAX_SHOWN]
        ]
        return self._listed(diagnostics, causes)

    def _listed(self, diagnostics: list[str], all_of_them: Sequence[Diagnostic]) -> str:
        more = len(all_of_them) - len(diagnostics)
        return self.before + "\n".join([*diagnostics, *([f"and {more} more"] if more else [])])


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return a question that suggests the nearest known name; empty if no name is near."""
    candidate = nearest(name, candidates)
    return f' Did you mean "{candidate}"?' if candidate else ""


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the nearest known name; None if all edit distances are greater than two."""
    similar = [candidate for candidate in candidates if _may_be_near(name, candidate)][
        :_MAX_COMPARED
    ]
    distances = sorted((_distance(name, candidate), candidate) for candidate in similar)
    return distances[0][1] if distances and distances[0][0] <= _NEAR else None


_NEAR = 2
_MAX_LENGTH = 50
_MAX_COMPARED = 200  # names; comparing more takes too long


def _may_be_near(name: str, other: str) -> bool:
    return abs(len(name) - len(other)) <= _NEAR and name != other and len(name) <= _MAX_LENGTH


def _distance(name: str, other: str) -> int:
    """Return the edit distance of two texts."""
    row = list(range(len(other) + 1))
    for row_number, letter in enumerate(name, 1):
        diagonal, row[0] = row[0], row_number
        for column, against in enumerate(other, 1):
            diagonal, row[column] = (
                row[column],
                min(row[column] + 1, row[column - 1] + 1, diagonal + (letter != against)),
            )
    return row[-1]
