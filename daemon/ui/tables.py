"""Tables: sorting on the server, and the labels of cells on a narrow screen. No I/O."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape, unescape
from typing import Any

import msgspec

from daemon.ui import formatting

Row = Any  # a record of the API as JSON
_BEGIN, _END = "<table>", "</table>"
_HEAD = re.compile(r"<thead>(.*?)</thead>", re.DOTALL)
_HEADER = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr\b[^>]*>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<(td|th)\b(?=([^>]*)>)")
_TAG = re.compile(r"<[^>]*>")
_FEWEST = 3  # a table with fewer columns does not become cards


class SortedTable(msgspec.Struct, frozen=True):
    """The rows of a table in the chosen order.

    `column` is the key of the column that orders the rows, empty for the original order.
    """

    rows: list[Row]
    name: str
    column: str = ""
    is_descending: bool = False

    def next_order(self, column: str) -> str:
        """Return the order that a click on a column's header chooses."""
        return f"-{column}" if column == self.column and not self.is_descending else column


def sort_table(
    name: str, rows: Iterable[Row], chosen: str, columns: Mapping[str, Callable[[Row], object]]
) -> SortedTable:
    """Return the rows ordered by a column; `-` before the column's key means descending.

    An unknown column leaves the order as it is. Rows without a value come last.
    """
    column, is_descending = chosen.removeprefix("-"), chosen.startswith("-")
    value = columns.get(column)
    unsorted = list(rows)
    if value is None:
        return SortedTable(unsorted, name)
    present = [row for row in unsorted if value(row) not in (None, "")]
    absent = [row for row in unsorted if value(row) in (None, "")]
    present.sort(key=lambda row: _comparable(value(row)), reverse=is_descending)
    return SortedTable(present + absent, name, column, is_descending)


def _comparable(value: object) -> tuple[float, str]:
    if isinstance(value, int | float):
        return float(value), ""
    return 0.0, str(value).casefold()


def link(path: str, pairs: Sequence[tuple[str, str]], **changes: object) -> str:
    """Return the URL of an escaped path, with `pairs` as the query parameters.

    `changes` replaces or adds parameters. An empty value removes a parameter.
    """
    query: dict[str, object] = dict(reversed(pairs))
    return formatting.address(path, **{**query, **changes})


def label_cells(page: str) -> str:
    """Add to each cell of a page's simple tables the header of its column, as `data-label`.

    A narrow screen shows each row as a card, in which the labels replace the headers. The templates
    have escaped all values, so no value can look like a tag.
    """
    pieces, position = list[str](), 0
    # Searching for fixed texts is faster than a regular expression, which would hold the GIL for 20
    # ms.
    while (first := page.find(_BEGIN, position)) >= 0 and (last := page.find(_END, first)) >= 0:
        pieces += [page[position:first], _labelled_table(page[first + len(_BEGIN) : last])]
        position = last + len(_END)
    return "".join([*pieces, page[position:]])


def _labelled_table(table: str) -> str:
    head = _HEAD.search(table)
    headers = [_visible_text(header) for header in _HEADER.findall(head[1])] if head else []
    if head is None or len(headers) < _FEWEST:
        return f"{_BEGIN}{table}{_END}"
    body = _ROW.sub(lambda row: _labelled_row(row[0], headers), table[head.end() :])
    return f'<table class="cards">{table[: head.end()]}{body}</table>'


def _labelled_row(row: str, headers: Sequence[str]) -> str:
    if "colspan" in row:
        return row
    labels = iter(headers)

    def labelled(cell: re.Match[str]) -> str:
        label = next(labels, "")
        return f'<{cell[1]} data-label="{escape(label)}"' if label else cell[0]

    return _CELL.sub(labelled, row)


def _visible_text(header: str) -> str:
    """Return the text of a column header without tags and sort arrows; empty if it is hidden."""
    return "" if 'class="hidden"' in header else unescape(_TAG.sub("", header)).strip(" ↑↓")
