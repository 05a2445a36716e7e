"""Where a command writes: plain aligned text here; on a terminal with colour (`terminal.py`).

What a pipe or a file gets has no colour, no hints and no moving parts. Documents go out whole
(`--json`) or in part (`-t`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import click
import msgspec

from daemon.cli import text
from daemon.cli.selector import select, steps
from storage.records.diff import DiffType


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """How the output is to look; `colour` forces or forbids what else the terminal decides."""

    as_json: bool = False
    selector: str = ""
    verbose: bool = False
    colour: bool | None = None


class Row(NamedTuple):
    """One thing that is being followed: what it is, and how it is now; `done` of `total`, if counted."""

    kind: str
    id: str
    name: str
    status: str
    detail: str = ""
    done: int = 0
    total: int = 0


class Progress:
    """Shows how things go on: here, a line whenever one of them has changed."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], Row] = {}

    def show(self, rows: Sequence[Row]) -> None:
        """Show how things are now."""
        for row in rows:
            key = (row.kind, row.id)
            if self._shown.get(key) != row:
                self._shown[key] = row
                self._changed(row)

    def _changed(self, row: Row) -> None:
        parts = [row.kind, row.id, row.name, row.status, row.detail]
        click.echo("  ".join(filter(None, parts)))


class Silence(Progress):
    """Shows nothing: the document at the end says it all."""

    def _changed(self, row: Row) -> None:
        """Leave it unsaid."""


class Screen:
    """What a command prints to."""

    def __init__(self, wishes: Wishes) -> None:
        self._as_json = wishes.as_json
        self._selector = wishes.selector
        self.verbose = wishes.verbose
        steps(wishes.selector)

    @property
    def wants_document(self) -> bool:
        """Tell whether JSON, or a part of it, is asked for instead of text."""
        return self._as_json or bool(self._selector)

    def document(self, body: bytes) -> None:
        """Print JSON, or the parts of it that are selected, one on each line."""
        if not self._selector:
            click.echo(msgspec.json.format(body, indent=4))
            return
        for part in select(msgspec.json.decode(body), self._selector):
            click.echo(part if isinstance(part, str) else msgspec.json.encode(part))

    def line(self, words: str = "") -> None:
        """Print a line."""
        click.echo(words)

    def told(self, words: str, body: bytes = b"") -> None:
        """Say what was done; as a document, what the daemon answered, or else the words as `Message`."""
        if self.wants_document:
            self.document(body or msgspec.json.encode({"Message": words}))
        else:
            self.line(words)

    def changed(self, fate: DiffType, words: str) -> None:
        """Print a line that tells what became of something."""
        click.echo(words)

    def title(self, words: str) -> None:
        """Print what the next lines are about, after an empty line."""
        click.echo(f"\n{words}")

    def facts(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print names and values."""
        for line in text.facts(pairs):
            click.echo(line)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows below a header."""
        for line in text.columns([header, *rows]):
            click.echo(line)

    def hint(self, words: str) -> None:
        """Name the next useful command: for people only, so not here."""

    def warn(self, words: str) -> None:
        """Print something that is not the answer, but should be seen."""
        click.echo(words, err=True)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Show how things go on while the block runs."""
        yield Silence() if self.wants_document else Progress()

    def short(self, identifier: str) -> str:
        """Return an identifier as it is shown: its beginning, or all of it if asked for."""
        return text.short(identifier, verbose=self.verbose)
