"""Find the corrupt pages of a store, and the tables that they belong to."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from storage.read_pool import connect

_MOST_PLACES = 20  # pages and tables; a damaged disk can cause thousands
# A page of an index belongs to the table of the index. Some builds of SQLite lack this virtual
# table.
_CORRUPT_PAGES = """
    SELECT pageno, entry.type || ' ' || dbstat.name AS owner, tbl_name
      FROM dbstat
      JOIN sqlite_schema AS entry ON entry.name = dbstat.name
     WHERE pagetype = 'corrupted'
     LIMIT :most
"""
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
_CHECK_OF_TABLE = "SELECT integrity_check AS text FROM pragma_integrity_check(:name)"


def damaged_places(path: Path) -> list[str]:
    """Return descriptions of the corrupt pages, and of tables that have other errors.

    The description of a page contains the name of the table or index that uses the page.
    """
    with closing(connect(path, read_only=True)) as connection:
        pages = _rows(connection, _CORRUPT_PAGES, {"most": _MOST_PLACES})[0]
        faults = [f"page {row['pageno']} of {row['owner']}" for row in pages]
        damaged_tables = {row["tbl_name"] for row in pages}
        for table in _rows(connection, _TABLES, {})[0]:
            name = table["name"]
            rows, error = _rows(connection, _CHECK_OF_TABLE, {"name": name})
            texts = [row["text"] for row in rows if row["text"] != "ok"] or [error]
            if texts[0] and name not in damaged_tables:
                faults.append(f"table {name}: {texts[0]}")
        return faults[:_MOST_PLACES]


def _rows(
    connection: sqlite3.Connection, sql: str, parameters: Mapping[str, object]
) -> tuple[list[sqlite3.Row], str]:
    """Return the rows that SQLite reads before its first error, and the text of that error.

    The text is empty if all rows can be read.
    """
    rows: list[sqlite3.Row] = []
    try:
        rows.extend(connection.execute(sql, parameters))
    except sqlite3.DatabaseError as error:
        return rows, str(error)
    return rows, ""
