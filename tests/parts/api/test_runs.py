"""The runs of a job in the API: filters, and their errors."""

from functools import partial

import pytest

from daemon.api import job_status
from daemon.api.routes import READ
from daemon.jobs.steer_run import RunActRequest
from storage.errors import Malformed, NotFound
from storage.records.codec import decode
from storage.store import Store
from tests.parts.api.requests import caller, request
from tests.parts.evals.cluster import Cluster
from tests.samples import job


@pytest.fixture
async def registered(store: Store) -> Store:
    cluster = Cluster(store)
    await cluster.join()
    await cluster.register(job())
    return store


def ask(store: Store, query: str, job_id: str = "web") -> object:
    given = request(store, READ, caller(), query=query, job_id=job_id)
    return store.read(partial(job_status.runs, given)).body


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("day=today", "day='today' is not a date"),
        ("day=2026-13-01", "day='2026-13-01' is not a date"),
        ("result=good", "result='good' is not known: give one of complete, failed"),
    ],
)
async def test_invalid_filter_is_named(registered: Store, query: str, complaint: str) -> None:
    with pytest.raises(Malformed, match=complaint):
        ask(registered, query)


async def test_unknown_job_is_not_found(registered: Store) -> None:
    with pytest.raises(NotFound):
        ask(registered, "day=2026-11-21", job_id="no")
    given = request(registered, READ, caller(), job_id="no")
    with pytest.raises(NotFound):
        registered.read(partial(job_status.calendar, given))


async def test_day_without_runs_is_empty(registered: Store) -> None:
    assert ask(registered, "day=20261121") == []


def test_number_of_a_run_is_not_negative() -> None:
    with pytest.raises(Malformed, match="number -1"):
        decode(RunActRequest, b'{"Number": -1, "Failed": true}')
