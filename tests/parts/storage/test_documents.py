"""The error of an unreadable row, whatever was selected with its document."""

import sqlite3

import msgspec
import pytest

from storage.errors import StorageUnreadable
from storage.queries.documents import KEYS, decode_repeated, decode_row, text_of
from storage.records.evaluation import Evaluation


class Note(msgspec.Struct, frozen=True):
    text: str


def selected(**columns: object) -> sqlite3.Row:
    """Return a row with these columns."""
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    terms = ", ".join(f"? AS {name}" for name in columns)
    row: sqlite3.Row = connection.execute(f"SELECT {terms}", [*columns.values()]).fetchone()
    connection.close()
    return row


def test_error_names_the_row_by_its_key() -> None:
    row = selected(namespace="default", name="week", version=3, document=b'{"cut')
    with pytest.raises(StorageUnreadable) as error:
        text_of(row, "calendar_versions")
    assert error.value.key == ("default", "week", 3)
    assert "the row default/week/3 of the table calendar_versions cannot be read" in str(
        error.value
    )


@pytest.mark.parametrize("table", KEYS)
def test_error_without_a_selected_key_has_the_same_type(table: str) -> None:
    """The fence of a worker catches only this error type; any other error stops its loop."""
    with pytest.raises(StorageUnreadable) as error:
        decode_row(selected(document=b'{"cut'), Evaluation, table)
    assert error.value.key == ("?",) * len(KEYS[table])


@pytest.mark.parametrize(("length", "is_shared"), [(2048, True), (2049, False)])
def test_only_short_repeated_documents_are_kept(length: int, is_shared: bool) -> None:
    text = "x" * (length - len('{"text":""}'))
    row = selected(id="a", client=f'{{"text":"{text}"}}')
    first, second = (decode_repeated(row, Note, "allocations", "client") for _ in range(2))
    assert (first.text, second.text) == (text, text)
    assert (first is second) == is_shared
