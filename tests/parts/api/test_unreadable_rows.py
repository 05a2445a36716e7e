"""A list omits only its unreadable row, and every reader reports this row.

Each column with documents is damaged in one row, in each of several ways. Then every route of the
table is read, and the check of the store names the row.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from typing import Any, cast

import msgspec
import pytest
import trio

from bench import other_objects
from bench.expensive_requests import WIDE
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.identity.lazy_methods import LazyMethods
from daemon.web.dispatcher import Dispatcher
from daemon.web.reply import WireResponse
from storage.check import check
from storage.errors import StorageUnreadable
from storage.queries import (
    entities,
    garbage_collection,
    jobs,
    namespaces,
    node_pools,
    search,
    services,
)
from storage.queries.document_types import COLUMNS, DocumentColumn
from storage.queries.documents import KEYS
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND
from storage.records.namespace import Namespace
from storage.records.node_pool import NodePool
from storage.records.service import ServiceAddress
from storage.store import Store
from tests.parts.api import full_store
from tests.parts.api import test_lists_have_pages as lists
from tests.parts.api.requests import parts_of
from tests.parts.api.test_pages_cost import ask
from tests.parts.ui.conftest import Runner
from tests.samples import job

asking = lists.asking

# The content after damage by a disk or another program, and the columns to test with it.
DAMAGES = {
    "cut": (b'{"pa', COLUMNS),
    "empty": (b"", COLUMNS[0::3]),
    "no text": (b'{"Name": "\xff"}', COLUMNS[1::3]),
    "another type": (b"[[]]", COLUMNS[2::3]),
}
QUERIES = ("pretty=0", "per_page=2&reverse=true&meta=true")
# Rows to add, because the store of `test_lists_have_pages.py` does not contain them.
MORE = (
    """INSERT INTO run_outputs VALUES
       ('default', '{job}', 1, 'step', 0, '{alloc}', '{{"main":{{"a":"b"}}}}', 5)""",
    """INSERT INTO run_acts VALUES
       ('default', '{job}', 1, 1, 'skip', '["step"]', 1, 'anna', '', 1, '', '')""",
    """INSERT INTO task_events VALUES ('{alloc}', 'main', 0, '{{"Type":"Started","Time":1}}')""",
    """INSERT INTO scaling_events VALUES
       ('default', '{job}', 'group', 1, '{{"Time":1,"PreviousCount":1}}')""",
    """UPDATE allocations SET health = '{{"Healthy":true}}', exclusive = '[[1],[]]'
        WHERE id = '{alloc}'""",
)
UNREAD = {
    "directories": "is read at a login only",
    "method_configs": "is read at a login only",
    "secret_rotations": "is read by its loop only",
    "signing_keys": "is held in memory",
    "job_submissions": "is one object",
}


async def dispatcher(store: Store, secret: str) -> tuple[Dispatcher, str]:
    """Return a dispatcher that has nothing cached, and the secret of a management token."""
    parts = parts_of(store)
    tasks, door, ids = cast("Any", Runner()), LazyMethods(parts.fences), map(str, count())
    parts = msgspec.structs.replace(parts, tasks=tasks, door=door, ids=ids)
    return Dispatcher(parts, ROUTES, ENDPOINTS, trio.Event()), secret


def change(store: Store, statement: str, values: tuple[object, ...] = ()) -> None:
    """Change the store by an SQL statement, without the triggers of the schema."""
    with closing(sqlite3.connect(store.path)) as other, other:
        found = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        for (name,) in other.execute(found).fetchall():
            other.execute(f"DROP TRIGGER {name}")
        other.execute(statement, values)


@contextmanager
def damaged(store: Store, column: DocumentColumn, left: bytes) -> Iterator[tuple[object, ...]]:
    """Damage the last row of a table: its column gets the bytes `left`.

    Yield the key of the row, or an empty key if an index refuses the text.
    """
    keys = KEYS[column.table]
    where = " AND ".join(f"{key} = ?" for key in keys)
    order = ", ".join(f"{key} DESC" for key in keys)
    select = f"SELECT {', '.join(keys)}, {column.name} FROM {column.table}"  # noqa: S608  # constants
    update = f"UPDATE {column.table} SET {column.name} = CAST(? AS TEXT) WHERE {where}"  # noqa: S608  # constants
    with closing(sqlite3.connect(store.path)) as other:
        others = (
            "" if column.table != "tokens" else "AND document NOT LIKE '%root%'"
        )  # not the caller's token
        found = f"{select} WHERE {column.name} IS NOT NULL {others} ORDER BY {order} LIMIT 1"
        row = other.execute(found).fetchone()
    assert row is not None, f"{column.table} has no row with {column.name}"
    *key, before = row
    try:
        change(store, update, (left, *key))
    except sqlite3.OperationalError:
        yield ()
        return
    try:
        yield tuple(key)
    finally:
        change(store, update, (before, *key))


def names_of(path: str) -> tuple[str, list[str]]:
    """Return a path with the names of existing objects, and these names."""
    parts = path.replace("{", "}").split("}")
    names = {**lists.NAMES, "name": "default"} if "/pool/" in path else lists.NAMES
    parts[1::2] = [names.get(name, "default") for name in parts[1::2]]
    return "".join(parts), parts[1::2]


async def response(asking: tuple[Dispatcher, str], path: str, query: str) -> WireResponse:
    target, names = names_of(path)
    everywhere = "" if names else "&namespace=*"
    return await ask(asking, target, f"{query}{everywhere}{lists.QUERIES.get(path, '')}", b"")


def items(answer: WireResponse) -> list[object] | None:
    """Return the elements of a list, or None for another response. Raises for a broken document."""
    is_json = answer.headers.get("Content-Type", "") == "application/json"
    body = msgspec.json.decode(answer.body) if is_json and answer.status == 200 else None
    return body if isinstance(body, list) else None


def fault_of(
    path: str, clean: WireResponse, answer: WireResponse, table: str, key: tuple[object, ...]
) -> str:
    """Return the fault of a response while a row is unreadable; empty if it is correct.

    `clean` is the response before the damage.
    """
    text = answer.body.decode(errors="replace")[:200]
    try:
        every, shown = items(clean), items(answer)
    except (msgspec.DecodeError, UnicodeError) as error:
        return f"a broken document: {error}"
    if answer.status != clean.status:
        name = "/".join(map(str, key))
        is_named = answer.status == 503 and f"the row {name} of the table {table} " in text
        is_own = every is None or bool({*map(str, key)} & ({*names_of(path)[1]} - {"default"}))
        return "" if is_named and is_own else f"{answer.status}: {text}"
    if every is not None and (shown is None or len(shown) < len(every) // 2):
        return f"{len(shown or ())} of {len(every)} elements"
    return ""


@pytest.mark.parametrize("damage", DAMAGES)
async def test_list_omits_only_the_unreadable_row(
    asking: tuple[Dispatcher, str], store: Store, damage: str
) -> None:
    for statement in MORE:
        change(store, statement.format(job=WIDE, alloc=full_store.ALLOC))
    _, secret = asking
    left, columns = DAMAGES[damage]
    clean = {
        (path, query): await response(asking, path, query)
        for path in lists.PATHS
        for query in QUERIES
    }
    faults, untried = list[str](), set[str]()
    for column in columns:
        if column.table in UNREAD:
            continue
        with damaged(store, column, left) as key:
            if not key:
                untried.add(f"{column.table}.{column.name}")
                continue
            fresh = await dispatcher(store, secret)
            for (path, query), before in clean.items():
                answer = await response(fresh, path, query)
                if fault := fault_of(path, before, answer, column.table, key):
                    faults.append(f"{column.table}.{column.name} {path}?{query}: {fault}")
            named = "/".join(map(str, key))
            found = check(store.path.parent)
            if not any(f"the row {named} of the table {column.table} " in one for one in found):
                faults.append(
                    f"{column.table}.{column.name}: the check does not name {named}: {found}"
                )
    assert faults == []
    assert untried <= {"allocations.desired"}  # an index on this column refuses damaged text


async def test_read_of_an_unreadable_row_and_the_health_report_name_the_row(
    asking: tuple[Dispatcher, str], store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    (column,) = (column for column in COLUMNS if column.table == "namespaces")
    with damaged(store, column, b"{") as (name,):
        fresh = await dispatcher(store, asking[1])
        answer = await ask(fresh, f"/v1/namespace/{name}", "", b"")
        assert answer.status == 503
        for way_out in (f"the row {name} of the table namespaces ", "snapshot restore", "check"):
            assert way_out in answer.body.decode()
            assert way_out in caplog.text
        health = await ask(fresh, "/v1/agent/health", "", b"")
        assert msgspec.json.decode(health.body)["unreadable_rows"] == {"namespaces": 1}
        metrics = await ask(fresh, "/v1/metrics", "format=prometheus", b"")
        assert b'steward_store_unreadable_rows{table="namespaces"} 1' in metrics.body
    health = await ask(fresh, "/v1/agent/health", "", b"")
    assert "unreadable_rows" not in msgspec.json.decode(health.body)


async def test_error_in_a_row_releases_its_snapshot(store: Store) -> None:
    def fail(db: ReadSnapshot) -> None:
        rows = db.each("SELECT name FROM table_indexes UNION ALL SELECT 'more'")
        raise StorageUnreadable(next(rows)["name"])

    await store.write(lambda tx: namespaces.put(tx, Namespace(name="one")))
    with pytest.raises(StorageUnreadable) as held:
        store.read(fail)
    await store.write(lambda tx: namespaces.put(tx, Namespace(name="two")))
    assert store.read(lambda db: namespaces.exists(db, "two"))
    assert held.traceback  # the traceback still refers to the rows


async def test_each_document_column_is_registered(store: Store) -> None:
    known = {(column.table, column.name) for column in COLUMNS}
    with closing(sqlite3.connect(store.path)) as other:
        every = other.execute(
            "SELECT t.name, c.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c"
            " WHERE t.type = 'table'"
        ).fetchall()
    documents = {"document", "payload", "filter_keys", "tags"}
    assert {(table, name) for table, name in every if name in documents} <= known
    assert {(table, name) for table, names in KEYS.items() for name in names} <= {*every}


@pytest.mark.parametrize("key", [("web\udcff",), ("?",)])
async def test_row_with_a_damaged_key_is_counted_and_fails_no_response(
    asking: tuple[Dispatcher, str], store: Store, key: tuple[object, ...]
) -> None:
    store.unreadable_rows.note(StorageUnreadable.of_row("namespaces", key, "it is cut"))
    for _ in range(2):
        health = await ask(asking, "/v1/agent/health", "", b"")
        assert msgspec.json.decode(health.body)["unreadable_rows"] == {"namespaces": 1}


async def test_unreadable_registration_ends_with_its_allocation(
    asking: tuple[Dispatcher, str], store: Store
) -> None:
    one = ServiceAddress(other_objects._service(0, full_store.ALLOC), True)
    await store.write(lambda tx: services.replace_registrations(tx, full_store.ALLOC, [one]))
    change(store, "UPDATE services SET tags = '{'")
    await store.write(lambda tx: services.replace_registrations(tx, full_store.ALLOC, []))
    left = "SELECT id FROM services WHERE allocation_id = :id"
    assert store.read(lambda db: db.all(left, {"id": full_store.ALLOC})) == []


async def test_unreadable_alias_still_belongs_to_its_mount(store: Store) -> None:
    row = "(mount, name, id, entity_id, document) VALUES ('m', 'n', 'a', 'e', '{')"
    change(store, f"INSERT INTO entity_aliases {row}")
    assert store.read(lambda db: entities.has_other_alias(db, "e", "m", "b"))
    assert not store.read(lambda db: entities.has_other_alias(db, "e", "m", "a"))
    assert not store.read(lambda db: entities.has_other_alias(db, "e", "other", "b"))


async def test_unreadable_pool_does_not_extend_the_ttl_of_an_identity(store: Store) -> None:
    short = NodePool(name="short", node_identity_ttl=60 * SECOND)
    await store.write(lambda tx: node_pools.put(tx, short))
    assert store.read(lambda db: node_pools.identity_ttl(db, "short")) == 60 * SECOND
    assert store.read(lambda db: node_pools.identity_ttl(db, "default")) is None
    change(store, "UPDATE node_pools SET document = '{' WHERE name = 'short'")
    with pytest.raises(StorageUnreadable):
        store.read(lambda db: node_pools.identity_ttl(db, "short"))


async def test_search_finds_the_names_of_readable_jobs(store: Store) -> None:
    for name in ("api", "web"):
        await store.write(partial(jobs.append_version, job=job(name)))
    change(store, "UPDATE job_versions SET document = '{' WHERE job_id = 'api'")
    assert [one.name for one in store.read(lambda db: list(search.job_names(db, ["default"])))] == [
        "web"
    ]


async def test_unreadable_job_is_not_deleted_and_garbage_collection_continues(store: Store) -> None:
    await store.write(partial(jobs.append_version, job=job("web")))
    change(store, "UPDATE job_versions SET document = '{'")
    key = ("default", "web")
    assert await store.write(partial(garbage_collection.forget_job, key=key, most=9)) == (True, 0)
    assert store.read(lambda db: db.one("SELECT id FROM jobs")) is not None
    assert store.unreadable_rows.by_table() == {"job_versions": 1}
