"""Stores of older versions migrate with all their contents, and a copy remains next to them.

`forms/stores` has stores of older versions, as a daemon of that version left them after a kill. Each
has services, a batch job, a periodic and a parameterized job, a blocked job and a variable. A
migration that changes rows adds a store with such rows.
"""

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from storage import schema
from storage.errors import StorageFull
from storage.queries import jobs
from storage.snapshot import inspect
from storage.store import FILE_NAME, open_store
from tests.parts.storage.test_schema import FORMS, form, make, pragma
from tests.samples import NOW

STORES = sorted((FORMS / "stores").glob("*.sql.gz"))
JOBS = ["web", "once", "nightly", "many", "huge"]


def store_of(kept: Path, directory: Path) -> Path:
    """Create the store that a dump describes; return the path of its file."""
    path = directory / FILE_NAME
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(gzip.decompress(kept.read_bytes()).decode())
    return path


def rows(path: Path, tables: list[str] | None = None) -> dict[str, int]:
    """Return how many rows each table has."""
    with closing(sqlite3.connect(path)) as connection:
        names = tables or [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        ]
        return {
            name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]  # noqa: S608  # names of tables of the schema
            for name in names
        }


@pytest.mark.parametrize("kept", STORES, ids=[store.name[:4] for store in STORES])
async def test_store_of_each_version_is_migrated_completely(kept: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    make(new)
    path = store_of(kept, tmp_path)
    before = rows(path)
    make(path)
    assert form(path) == form(new)
    assert rows(path, list(before)) == before
    assert pragma(path, "integrity_check") == "ok"
    async with open_store(tmp_path, cluster_id="other", now=NOW) as store:
        found = store.read(lambda db: [jobs.current(db, "default", job) for job in JOBS])
    assert [item.id for item in found if item is not None] == JOBS


def test_older_version_is_saved_as_a_restorable_snapshot(tmp_path: Path) -> None:
    path = store_of(STORES[0], tmp_path)
    before, older = rows(path), form(path)
    make(path)
    copy = tmp_path / "steward.db.version-0001"
    assert (form(copy), rows(copy)) == (older, before)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert inspect(copy).version == 1


def test_newest_three_migration_snapshots_remain(tmp_path: Path) -> None:
    for version in (3, 4, 5):
        (tmp_path / f"{FILE_NAME}.version-{version:04}").touch()
    store_of(STORES[-2], tmp_path)
    make(tmp_path / FILE_NAME)
    kept = sorted(path.name[-4:] for path in tmp_path.glob("*.version-*"))
    assert kept == ["0004", "0005", STORES[-2].name[:4]]


def test_store_of_this_version_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    make(path)
    make(path)
    assert list(tmp_path.glob("*.version-*")) == []


def test_migration_without_space_for_its_copy_changes_nothing_and_names_the_required_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store_of(STORES[0], tmp_path)
    older = form(path)

    def full(file: Path) -> None:
        raise OSError(28, "No space left on device", str(file))

    with monkeypatch.context() as disk:
        disk.setattr(schema, "fsync_path", full)
        with pytest.raises(StorageFull, match=r"has version 1, .* free 1 MB of disk space"):
            make(path)
    assert (form(path), pragma(path, "user_version")) == (older, 1)
    assert list(tmp_path.glob("*.version-*")) == []
    make(path)
    assert pragma(path, "user_version") == schema.VERSION


def test_migrated_queues_with_waiting_runs_are_served(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    make(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("""
            DROP TABLE queues_changed;
            INSERT INTO queue_entries
            VALUES ('default', 'a', 1, 'free', '', 1, 'holding', 50, 'queue', 1, 1),
                   ('default', 'b', 1, 'full', '', 1, 'holding', 50, 'queue', 1, 1),
                   ('default', 'c', 1, 'full', '', 1, 'waiting', 50, 'queue', 2, 1),
                   ('default', 'd', 1, 'full', '', 1, 'waiting', 50, 'queue', 3, 1);
        """)
        connection.executescript(schema.migrations()[40])
        found = connection.execute("SELECT namespace, name FROM queues_changed").fetchall()
    assert found == [("default", "full")]


def test_jobs_with_failed_or_lost_allocations_are_marked_by_the_migration(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    make(path)
    with closing(sqlite3.connect(path)) as connection:
        for name, _ in indexes_with(connection, "has_failed_allocation"):
            connection.execute(f"DROP INDEX {name}")
        connection.execute("ALTER TABLE jobs DROP COLUMN has_failed_allocation")
        connection.executescript("PRAGMA ignore_check_constraints = ON")
        for name in ("jobs_failed", "jobs_failed_by_name", "jobs_failed_top_level"):
            connection.execute(f"CREATE INDEX {name} ON jobs (id)")
        connection.execute("CREATE INDEX jobs_failed_top_level_by_name ON jobs (id)")
        columns = connection.execute("PRAGMA table_info(jobs)").fetchall()
        values = {name: "" if kind == "TEXT" else 0 for _, name, kind, *_ in columns}
        summaries = {"good": 0, "bad": 12}
        for job_id, failed in summaries.items():
            text = f'{{"Summary":{{"g":{{"Complete":3,"Failed":{failed},"Lost":0}}}}}}'
            row = {**values, "namespace": "default", "id": job_id, "summary": text}
            connection.execute(
                f"INSERT INTO jobs ({', '.join(row)}) VALUES (:{', :'.join(row)})",  # noqa: S608  # names of tables of the schema
                row,
            )
        connection.executescript(schema.migrations()[56])
        found = connection.execute("SELECT id, has_failed_allocation FROM jobs").fetchall()
        assert len(indexes_with(connection, "has_failed_allocation")) == 4
    assert dict(found) == {"good": 0, "bad": 1}


def indexes_with(connection: sqlite3.Connection, column: str) -> list[tuple[str, str]]:
    """Return the names and statements of the indexes whose condition has a column."""
    return connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql LIKE '%' || ? || '%'",
        (column,),
    ).fetchall()


def test_last_ends_of_jobs_are_migrated_from_the_ledgers(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    make(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("DROP TABLE job_ends; PRAGMA ignore_check_constraints = ON")
        columns = connection.execute("PRAGMA table_info(jobs)").fetchall()
        values = {name: "" if kind == "TEXT" else 0 for _, name, kind, *_ in columns}
        for job_id in ("plain", "flow"):
            row = {**values, "namespace": "default", "id": job_id}
            connection.execute(
                f"INSERT INTO jobs ({', '.join(row)}) VALUES (:{', :'.join(row)})",  # noqa: S608  # names of tables of the schema
                row,
            )
        columns = connection.execute("PRAGMA table_info(triggers)").fetchall()
        values = {name: "" if kind == "TEXT" else 1 for _, name, kind, *_ in columns}
        lines = [("plain", 0, 0, "failed"), ("plain", 1, 1, "succeeded"), ("flow", 5, 0, "failed")]
        for number, (job_id, run, version, status) in enumerate(lines):
            row = {**values, "id": number, "namespace": "default", "job_id": "load"}
            row |= {"source_namespace": "default", "run_job_id": job_id, "number": run}
            row |= {"version": version, "status": status}
            connection.execute(
                f"INSERT INTO triggers ({', '.join(row)}) VALUES (:{', :'.join(row)})",  # noqa: S608  # names of tables of the schema
                row,
            )
        connection.executescript(schema.migrations()[41])
        found = connection.execute("SELECT * FROM job_ends").fetchall()
    assert found == [("default", "plain", 1, 1, "succeeded", 0)]


def test_operations_and_runs_survive_the_migration_to_runs_of_one_step(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    make(path)
    act = ("default", "etl", 1, 1, "skip", '["b"]', 1, "ann", "note", 7, "token", "{}")
    with closing(sqlite3.connect(path)) as connection:
        for name in ("only_step", "only_element", "outputs_of"):
            connection.execute(f"ALTER TABLE runs DROP COLUMN {name}")
        connection.executescript("""
            INSERT INTO runs VALUES
            ('default', 'etl', 1, 0, 'succeeded', '', 'job-register', 1, 5, 9, 3, 4, 0, 0);
        """)
        connection.execute("INSERT INTO run_acts VALUES (?,?,?,?,?,?,?,?,?,?,?,?)", act)
        connection.executescript(schema.migrations()[57])
        found = connection.execute("SELECT * FROM run_acts").fetchall()
        added = connection.execute(
            "SELECT number, only_step, only_element, outputs_of FROM runs"
        ).fetchall()
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            connection.execute(
                "INSERT INTO run_acts VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
                (*act[:3], 2, "step", *act[5:]),
            )
        connection.execute(
            "INSERT INTO run_acts VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
            (*act[:3], 2, "step", *act[5:10], "", ""),
        )
    assert (found, added) == ([act], [(1, "", None, 0)])
