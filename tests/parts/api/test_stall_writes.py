"""No write request blocks the event loop for long, regardless of its size.

Each request has the largest permitted bodies and hostile ones (`bench/expensive_writes.py`) on a full
store. Later effects of a write, such as evaluations, have separate tests.
"""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

from bench import expensive_writes
from bench.expensive_requests import Asked
from bench.expensive_writes import BUSY, FEW, MANY
from daemon.web.request import SHORT
from storage.queries import job_status, jobs
from storage.records.job import Job, Parameterized
from storage.store import FILE_NAME, Store, open_store
from storage.writer import Transaction
from tests.parts.api import full_store
from tests.parts.api.test_stall import Asking, asking, searched_seldom
from tests.samples import NOW, job
from tests.step_timing import check_steps

NUMBER = 20_000
MOST = 5_000_000  # nanoseconds
TRIES = 5
OUTSIDE = {
    "POST /v1/client/gc": "only wakes the runner",
    "POST /v1/client/allocation/{alloc_id}/gc": "only wakes the runner",
    "POST /v1/client/allocation/{alloc_id}/signal": "only asks the runner",
    "POST /v1/operator/notify/test": "needs receivers; sending has loops of its own",
    "POST /v1/operator/snapshot": "puts another store in the place of this one",
    "PUT /v1/operator/snapshot": "puts another store in the place of this one",
}
EVERY = [
    request
    # Longer bodies are read in a thread: `test_large_bodies.py`.
    for request in expensive_writes.writes(SHORT)
    if request.row not in OUTSIDE and not request.row.startswith("TALK ")
]
DESTROYS = ("/gc", "/purge", "/stop", "/revoke-self")

__all__ = ["asking", "searched_seldom"]  # fixtures


def _last(row: str) -> tuple[bool, str]:
    """Return a sort key of a row: deletions come after the rows that need the deleted objects."""
    return (row.startswith("DELETE") or row.endswith(DESTROYS), row)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    async def add() -> None:
        async with open_store(path, cluster_id="c", now=NOW) as store:
            await store.write(_add_jobs)

    path = tmp_path_factory.mktemp("writes")
    full_store.copy_filled(full_store.base_of(tmp_path_factory), path, NUMBER)
    trio.run(add)
    with closing(sqlite3.connect(path / FILE_NAME)) as connection, connection:
        connection.execute(
            """
            UPDATE allocations SET job_id = ?, client_status = 'running'
             WHERE id IN (SELECT id FROM allocations WHERE job_id = ? LIMIT ?)
            """,
            (BUSY, full_store.WIDE, MANY),
        )
    return path


def _add_jobs(tx: Transaction) -> None:
    for item in (job(BUSY), job(FEW, type="batch", parameterized_job=Parameterized())):
        _add(tx, item)


def _add(tx: Transaction, job: Job) -> None:
    jobs.append_version(tx, job)
    job_status.refresh_summary(tx, job.namespace, job.id)


@pytest.fixture
async def store(directory: Path) -> AsyncIterator[Store]:
    async with open_store(directory, cluster_id="c", now=NOW) as store:
        yield store


@pytest.mark.parametrize("row", sorted({request.row for request in EVERY}, key=_last))
async def test_no_write_blocks_the_event_loop(asking: Asking, row: str) -> None:
    every = [request for request in EVERY if request.row == row]
    await asking.longest(msgspec.structs.replace(every[0], body=b"{}"))  # imports modules
    for request in every:
        await check_steps(partial(asking.longest, request), MOST, TRIES, _short(request))


def _short(request: Asked) -> tuple[str, str, str]:
    return request.method, request.path, f"{request.body!r:.100}"


def test_each_write_route_is_tested() -> None:
    talks = {row for row in expensive_writes.rows() if row.startswith("TALK ")}
    assert {request.row for request in EVERY} | (
        OUTSIDE.keys() & expensive_writes.rows()
    ) == expensive_writes.rows() - talks
