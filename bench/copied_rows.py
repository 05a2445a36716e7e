"""Fast creation of long histories by copying rows that the daemon has written."""

import sqlite3
from collections.abc import Mapping

_NUMBERS = """
    WITH RECURSIVE numbers (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})
"""


def copy(
    connection: sqlite3.Connection,
    table: str,
    source: str,
    numbers: range,
    texts: Mapping[str, str],
    *,
    step: int = 0,
    order: str = "",
) -> None:
    """Copy the rows of `table` that match the condition `source`, once for each `n` of `numbers`.

    In every column of a copy, each key of `texts` is replaced by the value of its SQL expression,
    which can contain `n`. Write indexes grow by `step` per copy. `order` names the columns by which
    the copies with the same `n` are sorted.
    """
    cursor = connection.execute(f"SELECT * FROM {table} WHERE {source}")
    columns = [description[0] for description in cursor.description]
    rows = cursor.fetchall()
    assert rows, f"the table {table} has no row to copy"
    values = []
    for place, column in enumerate(columns):
        value = column
        for text, by in texts.items():
            if any(isinstance(row[place], str) and text in row[place] for row in rows):
                value = f"replace({value}, '{text}', {by})"
        values.append(f"{column} + n * {step}" if step and column.endswith("_index") else value)
    if table == "events":  # SQLite assigns the numbers
        values[columns.index("number")] = "NULL"
    connection.execute(
        f"{_NUMBERS.format(first=numbers.start, last=numbers.stop - 1)} "
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} "
        f"FROM numbers CROSS JOIN (SELECT * FROM {table} WHERE {source}) "
        f"ORDER BY {', '.join(('n', *order.split()))}"
    )
