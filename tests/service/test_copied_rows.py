"""A history of copied rows is one that the daemon could have written."""

import sqlite3
from contextlib import closing
from pathlib import Path

from bench import full_store
from daemon.config.data_directory import store_dir
from storage.check import check
from storage.store import FILE_NAME


def test_daemon_continues_with_copied_rows_of_a_child_and_its_events(
    tmp_path: Path,
) -> None:
    full_store.begin(tmp_path)
    full_store.run_one(tmp_path)
    store = store_dir(tmp_path)
    full_store.fill(store / FILE_NAME, children=20, events=300)
    assert check(store) == []
    full_store.run_one(tmp_path)
    assert check(store) == []
    with closing(sqlite3.connect(store / FILE_NAME)) as connection:
        assert full_store.count(connection, "allocations") == 21
        assert full_store.count(connection, "evaluations") == 21
        assert full_store.count(connection, "events") >= 300
