"""The schema of the file: creation, migration and refusal."""

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from storage import schema
from storage.errors import StorageFull, StorageLocked, StorageUnusable
from storage.records.allocation import CLIENT_TERMINAL, ClientStatus
from storage.store import FILE_NAME, LOCK_NAME, lock, open_store
from tests.samples import NOW

FORMS = Path(__file__).parent / "forms"  # `schema.sql` as the first version had it


def form(path: Path) -> list[tuple[str, str]]:
    """Return the schema of a file, without comments, which migrations do not change."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
        return sorted((name, _bare(sql)) for name, sql in rows)


def _bare(sql: str) -> str:
    return " ".join(re.findall(r"\w+|\S", re.sub(r"--.*", "", sql)))


def pragma(path: Path, name: str) -> object:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]


def make(path: Path) -> None:
    schema.prepare(path, cluster_id="c", now=NOW)


def test_new_file_has_the_application_id(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    make(path)
    assert pragma(path, "application_id") == schema.APPLICATION_ID
    assert pragma(path, "user_version") == schema.VERSION
    assert pragma(path, "journal_mode") == "wal"
    assert path.stat().st_mode & 0o777 == 0o600


def test_second_open_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    make(path)
    before = form(path)
    make(path)
    assert form(path) == before


def test_every_table_has_a_comment_about_its_rows() -> None:
    text = schema.schema_text()
    undescribed = re.findall(r"(?<!\n)\n\nCREATE TABLE (\w+)|;\nCREATE TABLE (\w+)", text)
    assert undescribed == []
    assert all(") STRICT" in part for part in text.split("CREATE TABLE")[1:])


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    make(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    with pytest.raises(StorageUnusable, match="use the program that wrote it"):
        make(path)


def test_unrelated_database_is_refused_and_preserved(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(StorageUnusable, match="not a store of Steward"):
        make(path)
    assert form(path) == [("mine", _bare("CREATE TABLE mine (x)"))]


def test_file_that_is_no_database_is_refused_and_preserved(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_text("precious" * 1000)
    with pytest.raises(StorageUnusable, match="cannot be used as a store"):
        make(path)
    assert path.read_text().startswith("precious")


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file of the present version, and a program that knows one more migration."""
    path = tmp_path / FILE_NAME
    make(path)
    step = {schema.VERSION + 1: "ALTER TABLE namespaces ADD COLUMN color TEXT"}
    monkeypatch.setattr(schema, "migrations", lambda: step)
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    return path


def test_older_file_is_migrated(older: Path) -> None:
    make(older)
    assert pragma(older, "user_version") == schema.VERSION
    assert any("color" in sql for _, sql in form(older))


def test_failed_migration_leaves_the_older_version(
    older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = form(older)
    broken = {schema.VERSION: "ALTER TABLE namespaces ADD COLUMN color TEXT; SELECT nonsense"}
    monkeypatch.setattr(schema, "migrations", lambda: broken)
    with pytest.raises(StorageUnusable):
        make(older)
    assert form(older) == before
    assert pragma(older, "user_version") == schema.VERSION - 1


def test_full_disk_during_the_migration_leaves_the_older_version(
    older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two migrations needs more pages than the file may have."""
    before = form(older)
    fill = (
        "PRAGMA max_page_count = 1; CREATE TABLE more (x BLOB) STRICT; "
        "INSERT INTO more VALUES (zeroblob(100000))"
    )
    first = "ALTER TABLE namespaces ADD COLUMN color TEXT"
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    steps = {schema.VERSION - 1: first, schema.VERSION: fill}
    monkeypatch.setattr(schema, "migrations", lambda: steps)
    for _ in range(4):
        with pytest.raises(StorageFull, match="the store is unchanged; free 2 MB of disk space"):
            make(older)
    assert form(older) == before
    # a copy for each step would have replaced the copies of the versions that have a program
    assert [path.name for path in older.parent.glob("*.version-*")] == [
        f"{FILE_NAME}.version-{schema.VERSION - 2:04}"
    ]


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (sqlite3.SQLITE_READONLY, "check their owner, mode and attributes"),
        (sqlite3.SQLITE_CANTOPEN, "check their owner, mode and attributes"),
        (sqlite3.SQLITE_BUSY, "stop the program that uses the file"),
        (sqlite3.SQLITE_IOERR | 3 << 8, "check the disk and the kernel log"),
        (sqlite3.SQLITE_CORRUPT, "restore a snapshot"),
    ],
)
def test_remedy_fits_the_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
) -> None:
    path = tmp_path / FILE_NAME
    make(path)

    def fail(*_: object) -> None:
        error = sqlite3.OperationalError("some error")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(schema, "_check", fail)
    with pytest.raises(StorageUnusable, match=f"cannot be used as a store: some error; .*{remedy}"):
        make(path)


def test_first_schema_version_is_migrated_to_the_current_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, new = tmp_path / "first", tmp_path / "new"
    make(new)
    with monkeypatch.context() as past:
        past.setattr(schema, "VERSION", 1)
        past.setattr(schema, "schema_text", (FORMS / "0001.sql").read_text)
        past.setattr(schema, "migrations", dict)
        make(first)
    make(first)
    assert pragma(first, "user_version") == schema.VERSION
    assert form(first) == form(new)


def test_migrations_end_at_the_schema_version() -> None:
    assert [max([1, *schema.migrations()])] == [schema.VERSION]


async def test_a_second_daemon_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with lock(tmp_path):
        assert (tmp_path / LOCK_NAME).stat().st_mode & 0o777 == 0o600
    with (
        lock(tmp_path),
        pytest.raises(StorageLocked, match=rf"another daemon \(pid {os.getpid()}\)"),
        lock(tmp_path),
    ):
        pass


async def test_read_only_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "steward.lock").mkdir()
    with pytest.raises(StorageUnusable, match="cannot write to the data directory"):
        async with open_store(tmp_path, cluster_id="c", now=NOW):
            pass


def test_unfinished_allocations_have_the_last_statuses_of_the_alphabet() -> None:
    for status in ClientStatus:
        assert (status >= "pending") == (status not in CLIENT_TERMINAL), status


@pytest.mark.parametrize(
    ("statement", "checks"),
    [
        ("UPDATE allocations SET client_status = '', client = '', modify_index = 1", 1),
        ("UPDATE evaluations SET status = '', modify_index = 1, modify_time = 1", 1),
        ("DELETE FROM allocations WHERE id = ''", 0),
    ],
)
def test_conditions_of_indexes_and_triggers_build_no_tables(statement: str, checks: int) -> None:
    """For a list of three values in a condition, SQLite builds a table.

    Constraints of a table may have such lists.
    """
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema.schema_text())
        if not statement.startswith("DELETE"):
            statement += " WHERE id = ''"
        steps = [row[1] for row in connection.execute(f"EXPLAIN {statement}")]
    assert steps.count("OpenEphemeral") == checks


def test_no_condition_of_an_index_searches_the_summary_of_a_job() -> None:
    """The summary of a job of a thousand groups has 90 KB, and changes with each allocation."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema.schema_text())
        statements = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE type IN ('index', 'trigger') AND tbl_name = 'jobs'"
        ).fetchall()
    conditions = [sql.partition("WHERE")[2] for (sql,) in statements if sql]
    assert any(conditions)
    assert [condition for condition in conditions if "summary" in condition] == []
