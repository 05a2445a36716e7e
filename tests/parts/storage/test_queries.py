"""Queries: no query reads a whole table, and the state of a job follows from its rows."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from storage.queries import (
    allocated_resources,
    allocations,
    audit,
    children,
    deployments,
    directory_cache,
    entities,
    evaluations,
    freezes,
    garbage_collection,
    identity,
    index_times,
    job_listings,
    job_status,
    jobs,
    metrics,
    mounts,
    namespaces,
    nodes,
    periodic,
    policies,
    scaling,
    search,
    secrets,
    submissions,
    tallies,
    tokens,
    usage_history,
    variables,
    versions,
)
from storage.queries.evaluations import FreedResources
from storage.queries.pages import KeyRange, PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.evaluation import EvalStatus
from storage.records.flow import FlowRun
from storage.records.job import JobStatus, Parameterized, Submission
from storage.store import Store
from storage.writer import Transaction
from tests.samples import NOW, evaluation, group, job

EVERYWHERE = PageRequest(namespace="*")
RUN = FlowRun(namespace="default", job_id="job", number=1, version=0)


class Explained(ReadSnapshot):
    """A snapshot that records which tables its statements scan completely."""

    def __init__(self, db: ReadSnapshot) -> None:
        super().__init__(db._connection)
        self.scanned: list[str] = []
        self.plan = ""

    def all(self, sql: str, parameters: Mapping[str, object] = {}) -> list[Any]:
        for row in self._connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters):
            self.plan += f"{row['detail']}\n"
            # The plan also has a line for each table that a subquery reads. Tables of counts have a
            # row for each status.
            is_bounded = any(item in row["detail"] for item in ("INDEX", "(subquery", "_counts"))
            if row["detail"].startswith("SCAN") and not is_bounded:
                self.scanned.append(row["detail"])
        return super().all(sql, parameters)

    def each(self, sql: str, parameters: Mapping[str, object] = {}) -> Any:
        return iter(self.all(sql, parameters))

    def one(self, sql: str, parameters: Mapping[str, object] = {}) -> Any:
        found = self.all(sql, parameters)
        return found[0] if found else None


QUERIES: list[Callable[[ReadSnapshot], object]] = [
    lambda db: mounts.find(db, "cloudid/"),
    lambda db: freezes.find(db, "f"),
    lambda db: freezes.any_work(db),
    lambda db: freezes.all_not_ended(db, 10),
    lambda db: freezes.number(db, "default"),
    lambda db: freezes.covering(db, ("default", "web"), "", "", time=1),
    lambda db: freezes.over(db, 1, 10),
    lambda db: freezes.next_end(db),
    lambda db: freezes.holder(db, ("default", "web")),
    lambda db: mounts.by_accessor(db, "a"),
    lambda db: identity.config(db, "a"),
    lambda db: identity.role(db, "a", "dev"),
    lambda db: identity.role_names(db, "a"),
    lambda db: directory_cache.find(db, "a"),
    lambda db: entities.find(db, "e"),
    lambda db: entities.by_name(db, "e"),
    lambda db: entities.alias(db, "a", "one"),
    lambda db: entities.aliases(db, "e"),
    lambda db: tokens.issuers(db),
    lambda db: tokens.issued_by_mount(db, "a", KeyRange(most=10)),
    lambda db: tokens.issued_at_other_paths(db, "a", "auth/a/login", 10),
    lambda db: usage_history.of_owner(db, "job", "default", "web", step=10, begin=1, end=2),
    lambda db: usage_history.within(db, 10, 1, 2),
    lambda db: usage_history.first_begin(db, 10),
    lambda db: usage_history.last_begin(db, 300),
    lambda db: allocations.changed(db, "n", 1),
    lambda db: allocations.for_scheduler(db, "default", "web"),
    lambda db: allocations.unsettled(db, "default", "web"),
    lambda db: allocations.settled(db, "default", "web"),
    lambda db: allocations.find(db, "a"),
    lambda db: allocations.handles(db, "a"),
    lambda db: allocations.newest_events(db, "a", "main"),
    lambda db: allocations.of_deployment(db, "d"),
    lambda db: allocations.of_evaluation(db, "e"),
    lambda db: allocations.of_job(db, "default", "web"),
    lambda db: list(allocations.on_node(db, "n", PageRequest(namespace="*"))),
    lambda db: list(
        allocations.on_node(db, "n", PageRequest(namespace="*", start=(1, "a"), reverse=True))
    ),
    lambda db: allocations.highest_on_node(db, "n"),
    lambda db: list(allocations.page(db, PageRequest(namespace="default", prefix="abcd"))),
    lambda db: list(allocations.page(db, PageRequest(namespace="default"))),
    lambda db: allocations.to_run(db, "n"),
    lambda db: allocations.newest_running(db, "n", 9),
    lambda db: allocations.some_of_groups(db, RUN, ["g"], 9),
    lambda db: allocated_resources.allocated_on(db, "n"),
    lambda db: allocated_resources.holders(db),
    lambda db: allocated_resources.of_port(db, "n", 80),
    lambda db: allocations.highest_index(db, "default", "web"),
    lambda db: audit.after(db, 1),
    lambda db: audit.last(db),
    lambda db: audit.page(db, {}, 5),
    lambda db: audit.page(db, {"accessor": "a", "since": 1, "path": "/v1"}, 5),
    lambda db: deployments.find(db, "d"),
    lambda db: deployments.active(db),
    lambda db: deployments.latest(db, "default", "web"),
    lambda db: list(deployments.page(db, PageRequest(namespace="default", prefix="abcd"))),
    lambda db: list(deployments.page(db, PageRequest(namespace="*", start=(1, "a"), reverse=True))),
    lambda db: evaluations.any_blocked(db),
    lambda db: evaluations.find(db, "e"),
    lambda db: list(
        evaluations.job_page(db, "default", "web", PageRequest(namespace="*", start=(1, "")))
    ),
    lambda db: evaluations.next_blocked(db, lambda _need, _priority: True),
    lambda db: evaluations.runnable(db, 1),
    lambda db: evaluations.next_time(db, 1),
    lambda db: evaluations.unfinished(db, "default", "web"),
    lambda db: list(evaluations.page(db, PageRequest(namespace="default", prefix="abcd"))),
    lambda db: list(
        evaluations.page(
            db,
            PageRequest(
                namespace="default", conditions=("job_id = :job_id",), values={"job_id": "web"}
            ),
        )
    ),
    lambda db: list(job_listings.by_change(db, PageRequest(namespace="default", prefix="web-"))),
    lambda db: list(
        job_listings.by_change(db, PageRequest(namespace="*"), children=True, kind="batch")
    ),
    lambda db: list(job_listings.by_name(db, PageRequest(namespace="*"), kind="batch")),
    lambda db: job_listings.child_statuses(db, "default", "web"),
    lambda db: children.has_at_least_active(db, "default", "web", 3),
    lambda db: children.ended_before(db, "default", "web", 5, 3),
    lambda db: children.ended_beyond(db, "default", "web", 5, 3),
    lambda db: children.is_queued(db, "default", "web"),
    lambda db: children.parents(db),
    lambda db: children.unstopped(db, "default", "web", 3),
    lambda db: children.parents_with_queued(db),
    lambda db: jobs.current(db, "default", "web"),
    lambda db: garbage_collection.counts(db),
    lambda db: garbage_collection.dead_jobs(db, 1, 2, 10),
    lambda db: garbage_collection.orphans(db, 1, 10),
    lambda db: metrics.file_sizes(db),
    lambda db: metrics.killed_for_memory(db, "a", "main"),
    lambda db: jobs.find_by_idempotency_token(db, "default", "web", "token"),
    lambda db: list(job_listings.listing_rows(db, PageRequest(namespace="default"))),
    lambda db: list(
        job_listings.listing_rows(db, PageRequest(namespace="default", prefix="we"), with_meta=True)
    ),
    lambda db: job_listings.summary_wire(db, "default", "web"),
    lambda db: jobs.versions(db, "default", "web"),
    lambda db: index_times.index_at(db, 1),
    lambda db: namespaces.list_all(db, "de"),
    lambda db: namespaces.find(db, "default"),
    lambda db: namespaces.in_use(db, "default"),
    lambda db: nodes.find(db, "n"),
    lambda db: periodic.due(db, 1, 10),
    lambda db: periodic.next_time(db),
    lambda db: periodic.of_job(db, "default", "web"),
    lambda db: list(periodic.slots(db, "default", "web")),
    lambda db: scaling.events(db, "default", "web"),
    lambda db: list(scaling.policies(db)),
    lambda db: job_listings.on_every_node(db),
    lambda db: metrics.jobs_by_status(db),
    lambda db: metrics.summaries(db),
    lambda db: metrics.unfinished_evaluations(db, 1),
    lambda db: metrics.allocations(db),
    lambda db: search.ids_with_prefix(db, "jobs", ["default"], "w", 5),
    lambda db: search.ids_with_prefix(db, "allocations", ["default"], "0a1b", 5),
    lambda db: search.ids_with_prefix(db, "evaluations", ["default"], "0a1b", 5),
    lambda db: search.ids_with_prefix(db, "deployments", ["default"], "w", 5),
    lambda db: search.allocation_names(db, ["default"], "w", 5),
    lambda db: list(
        job_listings.by_change(db, PageRequest(namespace="*"), children=True, part="w")
    ),
    lambda db: list(search.job_names(db, ["default"])),
    lambda db: list(scaling.policies(db, "default", "web")),
    lambda db: list(scaling.policies(db, start=("default", "web"), reverse=True)),
    lambda db: secrets.below(db, "variables/"),
    lambda db: secrets.find(db, "variables/default/a"),
    lambda db: variables.find(db, "default", "a"),
    lambda db: list(variables.page(db, PageRequest(namespace="default", start=("default", "a")))),
    lambda db: list(variables.page(db, PageRequest(namespace="default", prefix="a/"))),
    lambda db: list(
        allocations.job_page(db, "default", "web", PageRequest(namespace="*", start=(1, "a")))
    ),
    lambda db: list(
        deployments.job_page(db, "default", "web", PageRequest(namespace="*", reverse=True))
    ),
    lambda db: evaluations.highest_of_job(db, "default", "web"),
    lambda db: deployments.highest_of_job(db, "default", "web"),
    lambda db: list(policies.page(db, PageRequest(namespace="*", prefix="a", start=("", "ab")))),
    lambda db: list(policies.role_page(db, PageRequest(namespace="*", start=("", "ab")))),
    lambda db: list(namespaces.page(db, PageRequest(namespace="*", prefix="a"))),
    lambda db: list(tokens.page(db, PageRequest(namespace="*", start=(1, "a")))),
    lambda db: versions.tagged(db, "default", "web", "t"),
    lambda db: list(policies.of_job(db, "web")),
    lambda db: policies.list_roles(db, "a"),
    lambda db: policies.find(db, "a"),
    lambda db: policies.role_named(db, "a"),
    lambda db: submissions.find(db, "default", "web", 1),
    lambda db: tokens.ended(db, NOW, 5),
    lambda db: list(tokens.page(db, PageRequest(namespace="*", prefix="a"))),
    lambda db: tokens.find(db, "a"),
    lambda db: tokens.next_end(db),
    lambda db: tokens.issued_by_mount(db, "a", KeyRange(most=5)),
    lambda db: tokens.find_by_secret(db, b"a"),
]


@pytest.mark.parametrize("query", QUERIES)
async def test_no_query_reads_a_whole_table(
    store: Store, query: Callable[[ReadSnapshot], object]
) -> None:
    await store.write(lambda tx: jobs.append_version(tx, job("web")))
    await store.write(lambda tx: job_status.refresh_summary(tx, "default", "web"))
    explained = store.read(Explained)
    store.read(lambda _: query(explained))
    assert explained.scanned == []


@pytest.mark.parametrize("query", QUERIES)
async def test_no_query_is_prepared_again_for_its_parameters(
    store: Store, query: Callable[[ReadSnapshot], object]
) -> None:
    def prepared_anew(db: ReadSnapshot) -> list[str]:
        for _ in range(4):
            query(db)
        return [row["sql"] for row in db.all("SELECT sql FROM sqlite_stmt WHERE reprep > 1")]

    options = [row[0] for row in store.read(lambda db: db.all("PRAGMA compile_options"))]
    if "ENABLE_STMTVTAB" not in options:
        pytest.skip("this SQLite cannot explain statements")
    assert store.read(prepared_anew) == []


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (
            lambda db: allocations.of_deployment(db, "d"),
            "allocations_by_deployment (deployment_id=?)",
        ),
        (
            lambda db: list(allocations.page(db, PageRequest(namespace="default", prefix="abcd"))),
            "autoindex_allocations_1 (id>? AND id<?)",
        ),
        (
            lambda db: list(evaluations.page(db, PageRequest(namespace="default", prefix="abcd"))),
            "autoindex_evaluations_1 (id>? AND id<?)",
        ),
        (
            lambda db: list(allocations.page(db, PageRequest(namespace="default", start=(1, "a")))),
            "allocations_in_order ((create_index,id)>(?,?))",
        ),
        (
            lambda db: list(evaluations.page(db, PageRequest(namespace="*", prefix="ab"))),
            "SCAN evaluations USING INDEX evaluations_in_order",
        ),
        (
            lambda db: list(
                job_listings.listing_rows(
                    db, PageRequest(namespace="default", start=("default", "a"))
                )
            ),
            "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (namespace=? AND",
        ),
        (lambda db: allocated_resources.holders(db), "SCAN a USING INDEX allocations_holding"),
        (
            lambda db: search.ids_with_prefix(db, "allocations", ["default"], "0a1b", 5),
            "autoindex_allocations_1 (id>? AND id<?)",
        ),
        (
            lambda db: search.ids_with_prefix(db, "evaluations", ["default"], "0a1b", 5),
            "autoindex_evaluations_1 (id>? AND id<?)",
        ),
        (
            lambda db: search.allocation_names(db, ["default"], "web", 5),
            "USING COVERING INDEX allocations_of_job_in_order",
        ),
        (
            lambda db: list(
                job_listings.by_change(
                    db, PageRequest(namespace="*", reverse=True), children=True, part="web"
                )
            ),
            "USING COVERING INDEX jobs_changed",
        ),
        *(
            (
                lambda db: list(
                    job_listings.by_change(
                        db, PageRequest(namespace="*", reverse=True), children=True, failed=True
                    )
                ),
                index,
            )
            for index in (
                "MERGE (UNION ALL)",
                "jobs_failed (type=?)",
            )
        ),
        (
            lambda db: list(
                allocations.on_node(db, "a", PageRequest(namespace="*", reverse=True), holding=True)
            ),
            "allocations_holding (node_id=?)\nUSE TEMP B-TREE FOR RIGHT PART OF ORDER BY",
        ),
        (
            lambda db: tallies.results(db, "default", "web", 5),
            "evaluations_unplaced (namespace=? AND job_id=?)",
        ),
        # A short prefix can match most of the table, but nothing in a namespace with few rows.
        (
            lambda db: search.ids_with_prefix(db, "allocations", ["few"], "0", 5),
            "allocations_of_job_in_order (namespace=?)",
        ),
    ],
)
async def test_few_rows_among_a_long_history_use_a_partial_index(
    store: Store, query: Callable[[ReadSnapshot], object], index: str
) -> None:
    explained = store.read(Explained)
    store.read(lambda _: query(explained))
    assert index in explained.plan


@pytest.mark.parametrize(
    ("query", "step"),
    [
        (
            lambda db: list(job_listings.by_name(db, PageRequest(namespace="*", reverse=True))),
            "SCAN jobs USING INDEX jobs_by_name",
        ),
        (
            lambda db: list(
                job_listings.by_name(db, PageRequest(namespace="*", start=("default", "a")))
            ),
            "SEARCH jobs USING INDEX jobs_by_name ((namespace,id)>(?,?))",
        ),
        (
            lambda db: list(
                job_listings.by_name(
                    db, PageRequest(namespace="*", prefix="we", start=("default", "web"))
                )
            ),
            "SEARCH jobs USING INDEX jobs_by_name (namespace=? AND id>? AND id<?)",
        ),
    ],
)
async def test_jobs_sorted_by_name_use_an_index(
    store: Store, query: Callable[[ReadSnapshot], object], step: str
) -> None:
    explained = store.read(Explained)
    store.read(lambda _: query(explained))
    assert explained.plan.endswith(f"{step}\n")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("prefix", ["", "web", "web-1"])
async def test_jobs_sorted_by_name_continue_at_any_name(
    store: Store, prefix: str, reverse: bool
) -> None:
    def fill(tx: Transaction) -> None:
        for item in ("api", "web", "web-1", "web-10", "web-2", "z"):
            added = jobs.append_version(tx, job(item))
            job_status.refresh_summary(tx, added.namespace, added.id)

    await store.write(fill)

    def names(start: tuple[str, str] | None) -> list[str]:
        page_request = PageRequest(namespace="*", prefix=prefix, start=start, reverse=reverse)
        found = store.read(lambda db: list(job_listings.by_name(db, page_request)))
        lines = store.read(lambda db: list(job_listings.listing_rows(db, page_request)))
        assert [line.id for line in lines] == [job_listing.id for job_listing in found]
        return [job_listing.id for job_listing in found]

    every = names(None)
    assert every == sorted(every, reverse=reverse)
    assert len(every) == {"": 6, "web": 4, "web-1": 2}[prefix]
    assert [names(("default", name)) for name in every] == [every[at:] for at in range(len(every))]


@pytest.mark.parametrize(
    "query",
    [
        lambda db: garbage_collection.replaced_allocations(db, 1, 2, 10),
        lambda db: garbage_collection.evaluations_beyond(db, 1, 10),
        lambda db: garbage_collection.deployments_beyond(db, 1, 10),
    ],
)
async def test_collectable_objects_are_found_by_indexes(
    store: Store, query: Callable[[ReadSnapshot], object]
) -> None:
    explained = store.read(Explained)
    store.read(lambda _: query(explained))
    # SQLite may scan the results of an index, but no table.
    tables = ("allocations", "evaluations", "deployments", "a", "d", "e", "n", "o")
    assert [line for line in explained.scanned if line.split()[1] in tables] == []


async def register(store: Store, **fields: Any) -> None:
    def work(tx: Transaction) -> None:
        stored = jobs.append_version(tx, job("web", **fields))
        evaluations.put(tx, evaluation(stored), NOW)
        job_status.refresh_summary(tx, "default", "web")

    await store.write(work)


def status(store: Store, job_id: str = "web") -> str:
    found = store.read(lambda db: jobs.current(db, "default", job_id))
    assert found is not None
    return found.status


async def test_a_job_with_an_unfinished_evaluation_is_pending(store: Store) -> None:
    await register(store)
    assert status(store) == JobStatus.PENDING


async def test_idle_job_is_dead(store: Store) -> None:
    await register(store)

    def finish(tx: Transaction) -> None:
        found = evaluations.find(tx, "e1")
        assert found is not None
        evaluations.put(tx, msgspec.structs.replace(found, status=EvalStatus.COMPLETE), NOW)
        job_status.refresh_summary(tx, "default", "web")

    await store.write(finish)
    assert status(store) == JobStatus.DEAD


@pytest.mark.parametrize(("stop", "expected"), [(False, "running"), (True, "dead")])
async def test_system_job_is_running_unless_stopped(
    store: Store, stop: bool, expected: str
) -> None:
    await register(store, type="system", stop=stop)
    assert status(store) == expected


async def test_older_version_has_its_last_status(store: Store) -> None:
    await register(store)
    await store.write(lambda tx: jobs.append_version(tx, job("web", priority=60)))
    versions = store.read(lambda db: jobs.versions(db, "default", "web"))
    assert [(version.version, version.priority, version.status) for version in versions] == [
        (1, 60, "pending"),
        (0, 50, "pending"),
    ]


async def test_a_parent_counts_its_children_by_status(store: Store) -> None:
    def children(tx: Transaction) -> None:
        jobs.append_version(tx, job("web"))
        for number in range(3):
            jobs.append_version(tx, job(f"web/{number}", parent_id="web"))
        job_status.refresh_summary(tx, "default", "web")
        job_status.refresh_summary(tx, "default", "web/0")

    await store.write(children)
    found = store.read(lambda db: job_listings.summary_wire(db, "default", "web"))
    assert found is not None
    assert msgspec.json.decode(found[0])["Children"] == {"Pending": 2, "Running": 0, "Dead": 1}


@pytest.mark.parametrize(
    "fields",
    [{"type": "batch", "parameterized_job": Parameterized()}, {}, {"parent_id": "another"}],
    ids=["launches", "plain", "child"],
)
async def test_new_job_adopts_the_children_of_a_purged_job(
    store: Store, fields: dict[str, Any]
) -> None:
    def write(tx: Transaction) -> None:
        parent = job("web", type="batch", parameterized_job=Parameterized())
        jobs.append_version(tx, parent)
        child = jobs.append_version(tx, job("web/1", parent_id="web"))
        evaluations.put(tx, evaluation(child, "e"), NOW)
        job_status.refresh_summary(tx, "default", "web/1")
        jobs.purge(tx, parent)
        jobs.append_version(tx, job("web", **fields))
        job_status.refresh_summary(tx, "default", "web")

    await store.write(write)
    counts = ("children_pending", "children_running", "children_dead")

    def counted(db: ReadSnapshot) -> list[int]:
        row = db.one("SELECT * FROM jobs WHERE id = 'web'")
        assert row is not None
        return [row[name] for name in counts]

    assert store.read(counted) == [1, 0, 0]
    await store.write(lambda tx: jobs.purge(tx, job("web/1", parent_id="web")))
    assert store.read(counted) == [0, 0, 0]


async def test_only_the_six_newest_sources_are_stored(store: Store) -> None:
    def add(tx: Transaction) -> None:
        jobs.append_version(tx, job("web"))
        for number in range(8):
            source = Submission(namespace="default", job_id="web", version=number)
            submissions.add(tx, source)

    await store.write(add)
    kept = [
        store.read(lambda db, n=n: submissions.find(db, "default", "web", n)) is not None
        for n in range(8)
    ]
    assert kept == [False, False, True, True, True, True, True, True]


async def test_a_version_can_be_neither_changed_nor_removed(store: Store) -> None:
    await register(store)
    with pytest.raises(Exception, match="append-only"):
        await store.write(lambda tx: tx.execute("UPDATE job_versions SET document = '{}'", {}))
    with pytest.raises(Exception, match="only removed with their job"):
        await store.write(lambda tx: tx.execute("DELETE FROM job_versions", {}))


async def test_purge_deletes_everything_except_evaluations(store: Store) -> None:
    await register(store)

    def purge(tx: Transaction) -> None:
        found = jobs.current(tx, "default", "web")
        assert found is not None
        jobs.purge(tx, found)

    await store.write(purge)
    assert store.read(lambda db: jobs.current(db, "default", "web")) is None
    assert store.read(lambda db: db.all("SELECT * FROM job_versions")) == []
    assert store.read(lambda db: evaluations.find(db, "e1")) is not None


async def test_a_listing_can_show_the_meta_of_each_job(store: Store) -> None:
    def add(tx: Transaction) -> None:
        jobs.append_version(tx, job("a", meta={"owner": "ops"}))
        jobs.append_version(tx, job("b"))
        job_status.refresh_summary(tx, "default", "a")
        job_status.refresh_summary(tx, "default", "b")

    await store.write(add)
    lines = store.read(
        lambda db: list(
            job_listings.listing_rows(db, PageRequest(namespace="default"), with_meta=True)
        )
    )
    assert [msgspec.json.decode(line)["Meta"] for _, _, line in lines] == [{"owner": "ops"}, None]


async def test_ready_evaluations_are_sorted_by_priority_and_age(store: Store) -> None:
    def add(tx: Transaction) -> None:
        for number, priority in enumerate([50, 80, 80]):
            stored = jobs.append_version(tx, job(f"j{number}", priority=priority))
            evaluations.put(tx, evaluation(stored, f"e{number}"), NOW)

    await store.write(add)
    found = store.read(lambda db: evaluations.runnable(db, NOW, 9))
    assert [evaluation.id for evaluation in found] == ["e1", "e2", "e0"]
    assert [
        evaluation.id for evaluation in store.read(lambda db: evaluations.runnable(db, NOW, 2))
    ] == [
        "e1",
        "e2",
    ]


async def test_delayed_evaluation_is_not_ready_early(store: Store) -> None:
    def add(tx: Transaction) -> None:
        stored = jobs.append_version(tx, job("web"))
        waiting = msgspec.structs.replace(
            evaluation(stored), wait_until="2026-11-21T01:40:00.000000005Z"
        )
        evaluations.put(tx, waiting, NOW)

    await store.write(add)
    assert store.read(lambda db: evaluations.runnable(db, NOW + 4)) == []
    assert store.read(lambda db: evaluations.next_time(db, NOW)) == NOW + 5
    assert len(store.read(lambda db: evaluations.runnable(db, NOW + 5))) == 1


@pytest.mark.parametrize(
    ("free", "found"),
    [
        (FreedResources(cpu=20, memory=20, disk=300), True),
        (FreedResources(cpu=20, memory=19, disk=300), False),
    ],
)
async def test_blocked_evaluation_runs_when_enough_capacity_was_freed(
    store: Store, free: FreedResources, found: bool
) -> None:
    def fits(need: FreedResources, priority: int) -> bool:
        assert priority == 50
        return need.cpu <= free.cpu and need.memory <= free.memory and need.disk <= free.disk

    def block(tx: Transaction) -> None:
        stored = jobs.append_version(tx, job("web", group()))
        blocked = msgspec.structs.replace(
            evaluation(stored), status=EvalStatus.BLOCKED, snapshot_index=tx.index
        )
        evaluations.put(tx, blocked, NOW, FreedResources(cpu=20, memory=20, disk=300))

    await store.write(block)
    assert store.read(lambda db: evaluations.next_blocked(db, fits)) is None

    def free_room(tx: Transaction) -> None:
        jobs.append_version(tx, job("other"))
        tx.touch(evaluations.ROOM)

    await store.write(free_room)
    assert (store.read(lambda db: evaluations.next_blocked(db, fits)) is not None) is found


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ("a_b", {"a_b", "Straße"}),
        ("B", {"a_b", "axB", "Straße"}),
        ("50%!", {"50%!", "Straße"}),
        ("%", {"50%!", "Straße"}),
        ("", {"a_b", "axB", "50%!", "Straße"}),
        ("x" * 2000, {"a_b", "axB", "50%!", "Straße"}),
        ("ß", {"a_b", "axB", "50%!", "Straße"}),
    ],
)
async def test_partial_name_is_compared_by_characters(
    store: Store, part: str, found: set[str]
) -> None:
    """The result keeps all IDs with non-ASCII letters, because the caller compares them again."""

    def fill(tx: Transaction) -> None:
        for name in ("a_b", "axB", "50%!", "Straße"):
            jobs.append_version(tx, job(name))

    await store.write(fill)
    rows = store.read(
        lambda db: [item.id for item in job_listings.by_name(db, EVERYWHERE, part=part)]
    )
    assert set(rows) == found
