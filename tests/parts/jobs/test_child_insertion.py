"""The fast insertion of a child stores the same rows and wakes the same topics as the general
one."""

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.jobs.bulk_dispatch import dispatch_lines, read_lines, split_lines
from daemon.jobspec.budgets import DEFAULTS
from storage.errors import Refused
from storage.queries import job_status, jobs
from storage.queries.new_children import ChildRows, NewChild
from storage.read_pool import ReadSnapshot
from storage.records.job import Job, JobType, Parameterized, Periodic
from storage.store import Store, open_store
from storage.writer import Transaction
from tests.samples import NOW, group, job, task

TABLES = (
    *("jobs", "job_versions", "job_version_states", "evaluations", "events"),
    *("table_indexes", "periodic_jobs"),
)
LINES = (
    '{"Meta": {"n": "\u00e9", "steward_notify_command": "page"}, "Payload": "QQ==", "Priority": 80}\n'
    '{"Meta": {"n": "2"}, "IdempotencyToken": "t", "IdPrefixTemplate": "x"}\n'
    "{}\n"
).encode()


def parent(**fields: Any) -> Job:
    optional = ["n", "steward_notify_command"]
    block = Parameterized(payload="optional", meta_optional=optional)
    made = {"type": "batch", "parameterized_job": block, **fields}
    return job("web", group("a"), group("b"), **made)


async def dispatched(directory: Path, made: Job) -> tuple[dict[str, list[Any]], set[str]]:
    """Return the rows after a bulk dispatch, and the topics that it published."""
    ids = (f"eval-{number}" for number in count(1))
    woken: set[str] = set()

    def register(tx: Transaction) -> None:
        jobs.append_version(tx, made)
        job_status.refresh_summary(tx, made.namespace, made.id)

    directory.mkdir()  # noqa: ASYNC240  # a test
    async with open_store(directory, cluster_id="c", now=NOW) as store:
        await store.write(register)
        publish = store._topics.publish

        def noting(topics: tuple[str, ...]) -> None:
            woken.update(topics)
            publish(topics)

        store._topics.publish = noting
        bulk_dispatch_answers = await dispatch_lines(
            store,
            "default",
            "web",
            read_lines(split_lines(LINES), "web"),
            budgets=DEFAULTS,
            now=NOW,
            ids=ids,
            suffix="s",
        )
        assert not any(answer.error for answer in bulk_dispatch_answers)
        rows = {
            name: [tuple(row) for row in store.read(lambda db, name=name: _rows(db, name))]
            for name in TABLES
        }
    return rows, woken


def _rows(db: Any, name: str) -> list[Any]:
    found: list[Any] = db.all(f"SELECT * FROM {name}")  # noqa: S608  # fixed names
    return found


@pytest.mark.parametrize(
    "meta",
    [
        None,
        {"steward_children_at_once": "1"},
        {"steward_notify_webhook": "https://x.example/", "a": "\u00e9"},
    ],
)
async def test_child_has_the_same_rows_as_any_new_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meta: dict[str, str] | None
) -> None:
    fast = await dispatched(tmp_path / "fast", parent(meta=meta))
    monkeypatch.setattr(ChildRows, "fit", lambda _parent: False)
    slow = await dispatched(tmp_path / "slow", parent(meta=meta))
    assert [table for table in TABLES if fast[0][table] != slow[0][table]] == []
    assert fast[1] == slow[1]
    assert len(fast[0]["jobs"]) == 4


@pytest.mark.parametrize("fields", [{"periodic": Periodic(enabled=True)}, {"type": JobType.SYSTEM}])
def test_children_with_special_features_are_inserted_by_the_general_code(
    fields: dict[str, Any],
) -> None:
    assert ChildRows.fit(parent())
    assert not ChildRows.fit(parent(**fields))


async def test_child_does_not_replace_another_job(store: Store) -> None:
    def work(tx: Transaction) -> None:
        rows = ChildRows(tx, job("", parent_id="web"))
        child = NewChild(id="web/1", meta=None, payload=None, priority=50)
        rows.add(child, rows.document(child), is_held=False)
        with pytest.raises(Refused, match='already a job with the ID "web/1"'):
            rows.add(child, rows.document(child), is_held=False)
        rows.close()

    await store.write(work)
    found = store.read(lambda db: jobs.current(db, "default", "web/1"))
    assert found is not None
    assert found.version == 0


async def test_each_child_has_its_own_indexes_and_time(store: Store) -> None:
    """The common parts of children are cached between writes.

    They contain neither the indexes nor the time of a child.
    """

    def work(tx: Transaction, number: int) -> None:
        rows = ChildRows(tx, job("", parent_id="web", submit_time=number))
        child = NewChild(id=f"web/{number}", meta=None, payload=None, priority=50)
        rows.add(child, rows.document(child), is_held=False)
        rows.close()

    for number in (1, 2):
        await store.write(partial(work, number=number))
    for number in (1, 2):
        child_id = f"web/{number}"
        found = store.read(partial(jobs.current, namespace="default", job_id=child_id))
        listing = store.read(partial(jobs.listing, namespace="default", job_id=child_id))
        assert found is not None
        assert listing is not None
        assert found.submit_time == listing.submit_time == number
        indexes = (listing.create_index, listing.job_modify_index)
        assert indexes == (found.create_index, found.job_modify_index)
    assert found.create_index == store.read(ReadSnapshot.last_index)


async def test_kept_parts_of_children_follow_the_definition(store: Store) -> None:
    def work(tx: Transaction, parent: Job) -> None:
        rows = ChildRows(tx, parent)
        child = NewChild(id=f"web/{parent.node_pool}", meta=None, payload=None, priority=50)
        rows.add(child, rows.document(child), is_held=False)
        rows.close()

    pools = ["a", "b"]
    for pool in pools:
        await store.write(partial(work, parent=job("", parent_id="web", node_pool=pool)))
    children = [
        store.read(partial(jobs.current, namespace="default", job_id=f"web/{pool}"))
        for pool in pools
    ]
    assert [child.node_pool for child in children if child] == pools


async def test_kept_parts_of_children_end_with_their_job(store: Store) -> None:
    def work(tx: Transaction, name: str, value: object) -> None:
        config = {"command": "/bin/true", "privileged": value}
        stored = jobs.append_version(tx, job("web", group("g", task(config=config))))
        child = job("", *(stored.task_groups or ()), parent_id="web")
        rows = ChildRows(tx, msgspec.structs.replace(child, create_index=stored.create_index))
        new = NewChild(id=name, meta=None, payload=None, priority=50)
        rows.add(new, rows.document(new), is_held=False)
        rows.close()
        jobs.purge(tx, stored)

    for name, value in (("web/1", 1), ("web/2", True)):  # equal in Python, and not in a definition
        await store.write(partial(work, name=name, value=value))
    found = store.read(partial(jobs.current, namespace="default", job_id="web/2"))
    assert found is not None
    assert found.task_groups is not None
    assert found.task_groups[0].tasks[0].config["privileged"] is True
