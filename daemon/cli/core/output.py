"""Output of commands: plain aligned text; `terminal.py` adds color on a terminal.

Pipes and files receive no color, no hints and no moving parts. Documents are printed in full
(`--json`) or in part (`-t`). Texts come from a server and from other users, so their control
characters are replaced by symbols. Pipes and files receive values for programs unchanged.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import click
import msgspec

from daemon.cli.core import formatting
from daemon.cli.core.selector import select, steps
from daemon.text.control_characters import visible, visible_json, visible_lines
from storage.records.diff import DiffType


def is_terminal() -> bool:
    """Return whether standard output is a terminal.

    Standard output is missing if the caller has closed it.
    """
    return sys.stdout is not None and sys.stdout.isatty()


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The output options; `color` forces or disables color."""

    as_json: bool = False
    selector: str = ""
    verbose: bool = False
    color: bool | None = None


class ProgressRow(NamedTuple):
    """One row of a progress display: an object, its state, and its progress `done` of `total`."""

    kind: str
    id: str
    name: str
    status: str
    detail: str = ""
    done: int = 0
    total: int = 0


class ProgressDisplay:
    """A progress display that prints a line for each change."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], ProgressRow] = {}

    def show(self, rows: Sequence[ProgressRow]) -> None:
        """Show the current rows."""
        for row in rows:
            key = (row.kind, row.id)
            if self._shown.get(key) != row:
                self._shown[key] = row
                self._changed(row)

    def _changed(self, row: ProgressRow) -> None:
        parts = [row.kind, row.id, row.name, row.status, row.detail]
        click.echo("  ".join(map(visible, filter(None, parts))))


class SilentDisplay(ProgressDisplay):
    """No progress display, because a document follows at the end."""

    def _changed(self, row: ProgressRow) -> None:
        """Print nothing."""


class Screen:
    """The output of a command."""

    def __init__(self, output_options: OutputOptions) -> None:
        self._as_json = output_options.as_json
        self._selector = output_options.selector
        self.verbose = output_options.verbose
        steps(output_options.selector)

    @property
    def wants_document(self) -> bool:
        """Return whether the options select JSON, or a part of it, instead of text."""
        return self._as_json or bool(self._selector)

    def document(self, body: bytes) -> None:
        """Print JSON, or its selected parts, one per line. Raises `DaemonUnreachable`."""
        # Imported late, because commands without a connection also print documents.
        from daemon.cli.core.http_client import check_document

        check_document(body)
        if not self._selector:
            click.echo(visible_json(msgspec.json.format(body, indent=4).decode()))
            return
        for part in select(msgspec.json.decode(body), self._selector):
            if isinstance(part, str):
                self.value(part)
            else:
                click.echo(visible_json(msgspec.json.encode(part).decode()))

    def document_line(self, body: bytes) -> None:
        """Print one of many JSON documents on its own line.

        With a selector, print the selected parts instead.
        """
        if self._selector:
            self.document(body)
        else:
            click.echo(visible_json(body.decode(errors="replace")))

    def line(self, words: str = "") -> None:
        """Print a line."""
        click.echo(visible_lines(words))

    def value(self, text: str) -> None:
        """Print a text that programs read: unchanged, except on a terminal."""
        click.echo(visible_lines(text) if is_terminal() else text.encode())

    def report(self, words: str, body: bytes = b"") -> None:
        """Report an action.

        If the options select a document, print the daemon's response. Without a response, print an
        object with the text as `Message`.
        """
        if self.wants_document:
            self.document(body or msgspec.json.encode({"Message": words}))
        else:
            self.line(words)

    def report_deletion(self, words: str, warnings: str) -> None:
        """Report a deletion, or the warnings of the response.

        The response to a deletion has warnings only if nothing was deleted.
        """
        self.report(warnings or words)

    def report_change(self, words: str, warnings: str) -> None:
        """Report a change, and print the warnings of the response to standard error."""
        if warnings:
            self.warn(f"warning: {warnings}")
        self.report(words)

    def changed(self, diff_type: DiffType, words: str) -> None:
        """Print a line, marked with its kind of change."""
        click.echo(visible_lines(words))

    def title(self, words: str) -> None:
        """Print a heading after an empty line."""
        click.echo(f"\n{visible_lines(words)}")

    def facts(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print names and values."""
        for line in formatting.key_value_lines(pairs):
            click.echo(line)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows below a header."""
        for line in formatting.columns([header, *rows]):
            click.echo(line)

    def hint(self, words: str) -> None:
        """Do nothing: only a screen on a terminal suggests the next command."""

    def warn(self, words: str) -> None:
        """Print a warning to standard error."""
        click.echo(visible_lines(words), err=True)

    @contextmanager
    def progress(self) -> Iterator[ProgressDisplay]:
        """Show progress while the block runs."""
        yield SilentDisplay() if self.wants_document else ProgressDisplay()

    @contextmanager
    def bar(self) -> Iterator[ProgressDisplay]:
        """Run the block without a progress bar: only a screen on a terminal shows a bar."""
        yield SilentDisplay()

    def short(self, identifier: str) -> str:
        """Return an identifier as it is shown: a prefix, or all of it with -verbose."""
        return formatting.short(identifier, verbose=self.verbose)
