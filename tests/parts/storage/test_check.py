"""The check finds each violation, and none in a correct store."""

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from daemon.jobs import calendars
from daemon.jobs.scale import ScalingRequest, scale_job
from daemon.jobspec.policies import JobPolicySet
from storage import snapshot
from storage.check import check
from storage.errors import StorageUnusable
from storage.queries import evaluations, job_listings, job_status, jobs, submissions
from storage.queries.invariants import RULES
from storage.records.allocation import ClientStatus
from storage.records.calendar import Calendar
from storage.records.job import Job, Parameterized, Periodic, Submission
from storage.store import open_store
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, evaluation, group, job
from tests.unit.scheduler.world import ROLLING

CHILD = "parent/dispatch-1"


@pytest.fixture
async def busy(tmp_path: Path) -> Path:
    """Return the directory of a store with objects of many kinds."""
    async with open_store(tmp_path, cluster_id="cluster", now=NOW) as store:
        cluster = Cluster(store)
        await cluster.join()
        await cluster.register(job("web", group("web", count=2, update=ROLLING)))
        await cluster.work()
        await cluster.run_all(healthy=True)
        await scale_job(
            store,
            "default",
            "web",
            ScalingRequest(target={"Group": "web"}, message="m"),
            policies=JobPolicySet(),
            now=NOW,
            eval_id="s",
        )
        await cluster.register(job("parent", type="batch", parameterized_job=Parameterized()))
        child = msgspec.structs.replace(job(CHILD, type="batch"), parent_id="parent")
        await cluster.register(child)
        await cluster.register(job("clock", type="batch", periodic=Periodic(specs=["@daily"])))
        for calendar in (
            Calendar(name="holidays", namespace="default"),
            Calendar(name="business", namespace="default", only=["holidays"]),
        ):
            await calendars.apply(store, calendar, now=NOW)
        keys = {"steward_run_calendar": "business"}
        daily = Periodic(specs=["@daily"])
        await cluster.register(job("open", type="batch", periodic=daily, meta=keys))
        needs = group("second", meta={"steward_needs": "first"})
        await cluster.register(job("flow", group("first"), needs, type="batch"))
        await cluster.register(job("far", datacenters=["nowhere"]))
        await cluster.work()
        (one,) = cluster.allocations(CHILD)
        await cluster.report(one, ClientStatus.COMPLETE)
        await cluster.work()
        source = Submission(job_id="web", namespace="default", version=0, source="x")
        await store.write(lambda tx: submissions.add(tx, source))
    return tmp_path


def damage(directory: Path, statement: str) -> None:
    with closing(sqlite3.connect(directory / "steward.db", isolation_level=None)) as connection:
        for trigger in ("job_versions_are_append_only", "job_versions_go_with_their_job"):
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.executescript(statement)


async def test_store_with_a_long_history_is_consistent(busy: Path) -> None:
    assert check(busy) == []


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM allocations WHERE rowid IN (SELECT min(rowid) FROM allocations)",
        "DELETE FROM jobs WHERE id = 'web'",
        "UPDATE allocations SET client_status = 'unknown'",
        "UPDATE allocations SET client_status = 'lost'",
    ],
)
async def test_resources_in_use_on_a_node_match_its_allocations(busy: Path, statement: str) -> None:
    with closing(sqlite3.connect(busy / "steward.db", isolation_level=None)) as connection:
        for trigger in ("job_versions_are_append_only", "job_versions_go_with_their_job"):
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.executescript(statement)
    assert "the allocated resources of a node are summed correctly" not in str(check(busy))


LINE = """
    INSERT INTO triggers (namespace, job_id, source_namespace, source_id, run_job_id, number, version,
                          attempt, status, state, reason, value, child_id, depth, ended, decided,
                          expires, create_index, modify_index)
    VALUES ('default', 'flow', 'default', 'x', 'x', 1, 0, 1, 'failed', {}, '', '', '', 1, 5, 5, {}, 1,
            1)
"""
STEP_SLOTS = """
    INSERT INTO step_slots
    SELECT namespace, job_id, number, step, 'db', 0, 1, {1}, {2}, 0, 50, 1, 1
      FROM run_steps WHERE job_id = 'flow' AND step = '{0}'
"""
DAMAGE = {
    "the current version of a job is its newest": "UPDATE jobs SET version = 7",
    "the versions of a job are numbered from 0 without a gap": (
        "UPDATE jobs SET version = version + 1"
    ),
    "every version has a state": "DELETE FROM job_version_states",
    "the columns of a job match its definition": "UPDATE jobs SET type = 'system'",
    "the child counts of a job are correct": "UPDATE jobs SET children_dead = 3",
    "a job with a failed run, or an allocation beyond its time limit, is marked as failed": (
        "UPDATE runs SET status = 'failed'; UPDATE jobs SET has_failed_run = 0"
    ),
    "a job whose summary counts failed or lost allocations is marked as failed": (
        "UPDATE jobs SET has_failed_allocation = 1 - has_failed_allocation WHERE id = 'web'"
    ),
    "a queued child has no pending or blocked evaluation": (
        "UPDATE jobs SET held = 1 WHERE id = 'far'"
    ),
    "a job that is not dead is in a namespace that exists": "DELETE FROM namespaces",
    "only the newest sources of a job are kept": """
        INSERT INTO job_submissions
        SELECT 'default', 'web', value, '{}' FROM (WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 6) SELECT value FROM n)
    """,
    "only the newest scaling events of a group are kept": """
        INSERT INTO scaling_events
        SELECT 'default', 'web', 'web', value, '{"Time":1,"PreviousCount":1}'
          FROM (WITH RECURSIVE n(value) AS (SELECT 100 UNION ALL SELECT value + 1 FROM n WHERE value < 120) SELECT value FROM n)
    """,
    "only the newest slots of a job are kept": """
        INSERT INTO periodic_slots
        SELECT 'default', 'clock', value, 1, 1, 'launched', '', '', 1 FROM (WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 1001) SELECT value FROM n)
    """,
    "no future slot is decided": """
        INSERT INTO periodic_slots
        VALUES ('default', 'clock', 9000000000000000000, 1, 1, 'launched', '', '', 1)
    """,
    "the latest version of a calendar is stored": "DELETE FROM calendar_versions",
    "only the newest versions of a calendar are kept": """
        INSERT INTO calendar_versions
        SELECT 'default', 'business', value + 1, '{}', '', 1 FROM (WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 60) SELECT value FROM n)
    """,
    "a calendar refers to calendars that exist": "UPDATE calendar_parts SET part = 'none'",
    "a job that is not stopped uses calendars that exist": (
        "UPDATE calendar_jobs SET calendar = 'none'"
    ),
    "no launch is expected before the next slot": """
        UPDATE periodic_jobs SET next_slot = 9, next_launch = 8
    """,
    "the columns of an evaluation match its document": "UPDATE evaluations SET priority = 9",
    "a job has at most one blocked evaluation": (
        "UPDATE evaluations SET status = 'blocked' WHERE job_id = 'far'"
    ),
    "an allocation is of a version that exists": "UPDATE allocations SET job_version = 9",
    "an allocation is on a node that exists": "DELETE FROM nodes",
    "desired allocations have unique names": "UPDATE allocations SET name = 'web.web[0]'",
    "only allocations that have not ended hold ports": """
        INSERT INTO allocation_ports SELECT node_id, 80, id FROM allocations
         WHERE client_status = 'complete'
    """,
    "the allocated resources of a node are summed correctly": "UPDATE holdings SET memory = memory + 1",
    "the counts of allocations are correct": "UPDATE allocation_counts SET number = number + 1",
    "the counts of jobs are correct": "UPDATE job_counts SET number = number + 1",
    "the events of a task are numbered without a gap": """
        INSERT INTO task_events SELECT allocations.id, 'main', value, '{"Type":"Started","Time":1}' FROM allocations, json_each('[5, 7]')
    """,
    "the columns of a deployment match its document": "UPDATE deployments SET status = 'x'",
    "a job has at most one active deployment": """
        INSERT INTO deployments
        SELECT 'd2', namespace, job_id, job_version, status, create_index, modify_index, document
          FROM deployments
    """,
    "events are in the order of the writes": """
        UPDATE events SET write_index = 1 WHERE number = (SELECT max(number) FROM events)
    """,
    "an ended run has no step that can still change": """
        UPDATE runs SET status = 'failed' WHERE job_id = 'flow'
    """,
    "a step has an outcome exactly when it has ended": """
        UPDATE run_steps SET outcome = 'good' WHERE step = 'second'
    """,
    "only a step that was opened has allocations": "UPDATE run_steps SET opened = 0",
    "an ended run has no desired allocations": "UPDATE runs SET status = 'canceled'",
    "a step counts the bytes of its outputs": "UPDATE run_steps SET output_bytes = 1",
    "outputs belong to an element of a step that was opened": """
        INSERT INTO run_outputs VALUES ('default', 'flow', 1, 'first', 7, 'a', '{}', 0)
    """,
    "an unfinished run has something to wait for": """
        UPDATE allocations SET client_status = 'complete' WHERE job_id = 'flow'
    """,
    "a run that started a job names the child, and each other final effect has a reason": (
        LINE.format("'fired'", 0)
    ),
    "a run waits only at a job that follows its source, once for each source and value": (
        LINE.format("'waiting'", 5)
    ),
    "a job that follows others launches children and has steward_after": """
        INSERT INTO job_sources VALUES ('default', 'flow', 'default', 'x', 0, 'any', 1)
    """,
    "a run that holds or awaits slots has not ended": """
        INSERT INTO queue_entries SELECT namespace, job_id, number, 'db', '', 1, 'holding', 50, 'queue',
                                         1, 1 FROM runs WHERE job_id = 'flow';
        UPDATE runs SET status = 'failed' WHERE job_id = 'flow'
    """,
    "a run that waits for slots has no task": """
        INSERT INTO queue_entries SELECT namespace, job_id, number, 'db', '', 1, 'waiting', 50, 'queue',
                                         1, 1 FROM runs WHERE job_id = 'flow'
    """,
    "a queue with waiting runs and no used slot is marked as changed": """
        INSERT INTO queue_entries SELECT namespace, job_id, number, 'db', '', 1, 'waiting', 50, 'queue',
                                         1, 1 FROM runs WHERE job_id = 'flow'
    """,
    "a job waits for the end of a freeze that exists": (
        "INSERT INTO frozen_jobs VALUES ('default', 'flow', 'none', 1, 1)"
    ),
    "a stopped job waits for no freeze": """
        INSERT INTO frozen_jobs VALUES ('default', 'flow', 'none', 1, 1);
        UPDATE evaluations SET status = 'complete';
        UPDATE jobs SET stop = 1 WHERE id = 'flow'
    """,
    "a run that a freeze holds before its first step has no slot": """
        INSERT INTO frozen_jobs VALUES ('default', 'flow', 'none', 1, 1);
        UPDATE run_steps SET opened = 0;
        INSERT INTO queue_entries SELECT namespace, job_id, number, 'db', '', 1, 'holding', 50, 'queue',
                                         1, 1 FROM runs WHERE job_id = 'flow'
    """,
    "a step that holds or awaits slots may begin or has begun": STEP_SLOTS.format("second", 1, 1),
    "a step has a slot for each active element": STEP_SLOTS.format("first", 1, 0),
    "one queue of the first waiting step of a namespace is in use, or is marked as changed": (
        STEP_SLOTS.format("first", 1, 0)
    ),
    "no index is higher than that of the last write": "UPDATE jobs SET modify_index = 99999",
    "no object was modified before it was created": "UPDATE nodes SET create_index = modify_index + 1",
    "the index of a table is not older than its rows": "UPDATE table_indexes SET last_index = 0",
    "the stored status of a job is correct": "UPDATE jobs SET status = 'pending'",
    "the stored counts of a job are correct": (
        "UPDATE jobs SET summary = replace(summary, '\"Running\":2', '\"Running\":1')"
    ),
    "only periodic jobs have a stored schedule": "DELETE FROM periodic_jobs",
    "documents can be read": "UPDATE nodes SET document = '[]'",
    "referenced rows exist": "UPDATE job_submissions SET job_id = 'nobody'",
}


def test_each_rule_is_tested() -> None:
    assert RULES.keys() - DAMAGE.keys() == set()


@pytest.mark.parametrize(("rule", "statement"), DAMAGE.items())
async def test_broken_invariant_is_found(busy: Path, rule: str, statement: str) -> None:
    damage(busy, statement)
    assert [fault for fault in check(busy) if fault.startswith(f"{rule}: ")]


@pytest.mark.parametrize(("failed", "sound"), [(1, True), (0, False)])
async def test_allocations_of_a_failed_rollout_may_share_a_name(
    busy: Path, failed: int, sound: bool
) -> None:
    damage(
        busy,
        "UPDATE allocations SET name = 'web.web[0]', job_version ="
        " (id = (SELECT max(id) FROM allocations WHERE job_id = 'web')) WHERE job_id = 'web'",
    )
    with closing(sqlite3.connect(busy / "steward.db", isolation_level=None)) as connection:
        connection.execute(
            "UPDATE deployments SET status = 'failed', job_version = :failed", {"failed": failed}
        )
    told = [fault for fault in check(busy) if fault.startswith("desired allocations have unique")]
    assert not told if sound else told


async def test_damaged_file_is_detected(busy: Path) -> None:
    file = busy / "steward.db"
    content = bytearray(file.read_bytes())
    content[4096 * 5 : 4096 * 25] = b"\0" * (4096 * 20)
    file.write_bytes(content)
    try:
        faults = check(busy)
    except StorageUnusable as error:
        faults = [str(error)]
    assert faults


def test_missing_store_has_no_errors(tmp_path: Path) -> None:
    said = "there is no store in .*: name the data directory with --data-dir"
    with pytest.raises(StorageUnusable, match=said):
        check(tmp_path)
    with pytest.raises(StorageUnusable, match=said):
        snapshot.save(tmp_path, tmp_path / "s.snap")


@pytest.mark.parametrize("block", [Parameterized(), None])
async def test_children_of_an_earlier_job_with_the_same_name_are_counted(
    busy: Path, block: Parameterized | None
) -> None:
    async with open_store(busy, cluster_id="cluster", now=NOW) as store:

        def again(tx: Transaction) -> None:
            parent: Job | None = jobs.current(tx, "default", "parent")
            assert parent is not None
            jobs.purge(tx, parent)
            jobs.append_version(tx, msgspec.structs.replace(parent, parameterized_job=block))
            job_status.refresh_summary(tx, "default", "parent")

        await store.write(again)
        found = store.read(lambda db: job_listings.summary_wire(db, "default", "parent"))
    assert found is not None
    assert msgspec.json.decode(found[0])["Children"] == {"Pending": 0, "Running": 0, "Dead": 1}
    assert check(busy) == []


async def test_child_of_an_earlier_job_with_the_same_name_can_restart(busy: Path) -> None:
    async with open_store(busy, cluster_id="cluster", now=NOW) as store:

        def again(tx: Transaction) -> None:
            parent, child = (jobs.current(tx, "default", item) for item in ("parent", CHILD))
            assert parent is not None
            assert child is not None
            jobs.purge(tx, parent)
            jobs.append_version(tx, msgspec.structs.replace(parent, parameterized_job=None))
            evaluations.put(tx, evaluation(child, "again"), NOW)
            job_status.refresh_summary(tx, "default", "parent")
            job_status.refresh_summary(tx, "default", CHILD)

        await store.write(again)
    assert check(busy) == []
