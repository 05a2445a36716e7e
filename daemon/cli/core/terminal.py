"""Terminal output with color and a live display. Imported only for output in color."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from daemon.cli.core import formatting
from daemon.cli.core.output import OutputOptions, ProgressDisplay, ProgressRow, Screen
from daemon.text.control_characters import visible, visible_lines
from storage.records.diff import DiffType

_COLORS = {
    "running": "green",
    "complete": "green",
    "ready": "green",
    "eligible": "green",
    "pending": "yellow",
    "blocked": "yellow",
    "failed": "red",
    "lost": "red",
    "down": "red",
    "dead": "bright_black",
    "stop": "bright_black",
    "canceled": "bright_black",
}


_BAR = 20  # columns
_FATES = {
    DiffType.ADDED: "green",
    DiffType.DELETED: "red",
    DiffType.EDITED: "yellow",
    DiffType.NONE: "",
}


def styled(words: str) -> Text:
    """Return a text in the color that belongs to its first word."""
    return Text(visible(words), style=_COLORS.get(words.partition(" ")[0], ""))


class _Live(ProgressDisplay):
    """A live display that is redrawn after a change."""

    def __init__(self, live: Live) -> None:
        super().__init__()
        self._live = live

    def show(self, rows: Sequence[ProgressRow]) -> None:
        """Draw the current rows."""
        for row in rows:
            self._shown[row.kind, row.id] = row
        table = _grid()
        for row in self._shown.values():
            columns = Text(row.kind, style="bright_black"), Text(visible(row.id)), _middle(row)
            table.add_row(
                *columns, styled(row.status), Text(visible(row.detail), style="bright_black")
            )
        self._live.update(table, refresh=True)


class TerminalScreen(Screen):
    """A screen with color, hints and a live display."""

    def __init__(self, output_options: OutputOptions, *, hints: bool) -> None:
        super().__init__(output_options)
        self._hints = hints
        self._console = Console(highlight=False, soft_wrap=True, force_terminal=True)

    def changed(self, diff_type: DiffType, words: str) -> None:
        """Print a line in the color of its kind of change."""
        self._console.print(Text(visible_lines(words), style=_FATES[diff_type]))

    def title(self, words: str) -> None:
        """Print a heading."""
        self._console.print(Text(f"\n{visible_lines(words)}", style="bold"))

    def facts(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print names and values."""
        for name, value in formatting.padded(pairs):
            text = value.strip() or formatting.NOTHING
            self._console.print(Text(name, style="bold"), "=", styled(text))

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows below a header."""
        # Cells are never cut or wrapped, even in a narrow terminal, so that identifiers can be
        # copied.
        titles, *lines = formatting.padded([header, *rows])
        self._console.print(Text("  ".join(titles).rstrip(), style="bold"))
        for cells in lines:
            line = Text("  ").join(styled(cell) for cell in cells)
            line.rstrip()
            self._console.print(line)

    def hint(self, words: str) -> None:
        """Suggest the next command."""
        if self._hints:
            self._console.print(Text(f"\n{visible_lines(words)}", style="bright_black"))

    @contextmanager
    def progress(self) -> Iterator[ProgressDisplay]:
        """Show progress while the block runs."""
        with Live(console=self._console, auto_refresh=False) as live:
            yield _Live(live)

    @contextmanager
    def bar(self) -> Iterator[ProgressDisplay]:
        """Show a progress bar while the block runs."""
        with self.progress() as progress:
            yield progress


def _middle(row: ProgressRow) -> Text | ProgressBar:
    """Return the middle cell of a row: the name of the object, or its progress bar."""
    if not row.total:
        return Text(visible(row.name))
    return ProgressBar(total=row.total, completed=row.done, width=_BAR)


def _grid() -> Table:
    """Return a table whose lines fit into the terminal."""
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for _ in range(4):
        grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # takes the remaining width
    return grid
