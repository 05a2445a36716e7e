"""A plan predicts the changes of a registration, and changes nothing itself."""

import hashlib
from typing import Any

import msgspec
import pytest

from daemon.evals.dry_run import DryRunResult, dry_run, external_port_listeners, static_ports
from daemon.net.port_listeners import PortListener
from storage.records.constraints import Constraint
from storage.records.evaluation import DesiredUpdates, EvalStatus
from storage.records.group import Update
from storage.records.job import Job, Parameterized, Periodic
from storage.records.scaling import Scaling
from storage.records.task import Network, Port, Resources
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, group, job, task
from tests.unit.scheduler.world import node

ROLLING = Update(max_parallel=1, min_healthy_time=1, healthy_deadline=2, progress_deadline=3)
NOWHERE = [Constraint(l_target="${attr.kernel.name}", r_target="plan9", operand="=")]


def look(cluster: Cluster, wanted: Job) -> DryRunResult:
    return cluster.store.read(
        lambda db: dry_run(db, wanted, now=cluster.clock.now(), ids=cluster.ids)
    )


def counts(outlook: DryRunResult, name: str = "web") -> dict[str, int]:
    """Return the counts of a group in a dry run, without zeros."""
    found = msgspec.structs.asdict(outlook.annotations.desired_tg_updates[name])
    return {key: number for key, number in found.items() if number}


async def running(cluster: Cluster, wanted: Job) -> None:
    await cluster.register(wanted)
    await cluster.work()
    await cluster.run_all(healthy=True)
    await cluster.work()


BEFORE = job("web", group(count=2), type="service")
CHANGES = {
    "a new version of its task": job("web", group("web", task(env={"a": "b"}), count=2)),
    "another priority": job("web", group(count=2), priority=70),
    "more": job("web", group(count=4)),
    "fewer": job("web", group(count=1)),
    "another group": job("web", group("other", count=1)),
    "a rolling update": job("web", group("web", task(user="x"), count=2, update=ROLLING)),
    "a stop": job("web", group(count=2), stop=True),
    "no place": job("web", group("web", task(user="x"), count=2), constraints=NOWHERE),
    "another type": job("web", group(count=2), type="batch"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_execution_matches_the_plan(cluster: Cluster, change: str) -> None:
    await running(cluster, BEFORE)
    planned = look(cluster, CHANGES[change])
    registered = await cluster.register(CHANGES[change])
    await cluster.work()
    done = cluster.evaluation(registered.id)
    assert planned.annotations == done.plan_annotations
    assert planned.failed.keys() == (done.failed_tg_allocs or {}).keys()
    assert len(planned.evaluations) == len(cluster.evaluations(EvalStatus.BLOCKED))


async def test_a_plan_changes_nothing(cluster: Cluster) -> None:
    await running(cluster, BEFORE)
    before = contents(cluster)
    look(cluster, CHANGES["no place"])
    look(cluster, job("new"))
    assert contents(cluster) == before


def contents(cluster: Cluster) -> str:
    """Return a digest of the content of the store."""
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    rows = cluster.store.read(
        lambda db: [
            tuple(row)
            for table in db.all(tables, {})
            for row in db.all(f"SELECT * FROM {table['name']}", {})  # noqa: S608  # names of tables of the schema
        ]
    )
    assert len(rows) > 5
    return hashlib.sha256(repr(rows).encode()).hexdigest()


async def test_unchanged_job_has_no_differences(cluster: Cluster) -> None:
    await running(cluster, BEFORE)
    planned = look(cluster, msgspec.structs.replace(BEFORE, submit_time=NOW + 5))
    assert (planned.diff.type, counts(planned)) == ("None", {"ignore": 2})
    assert planned.index == cluster.job().job_modify_index


async def test_scaling_policy_keeps_its_count(cluster: Cluster) -> None:
    policy = Scaling(type="horizontal", max=3, target={"Group": "web"})
    with_number = msgspec.structs.replace(policy, id="p-1", create_index=7, modify_index=7)
    await running(cluster, job("web", group(scaling=with_number)))
    assert look(cluster, job("web", group(scaling=policy))).diff.type == "None"


async def test_plan_of_a_new_job_has_no_previous_version(cluster: Cluster) -> None:
    planned = look(cluster, job("web", group(count=2)))
    assert (planned.index, planned.diff.type, counts(planned)) == (0, "Added", {"place": 2})


async def test_unplaced_group_has_a_reason_and_a_blocked_evaluation(cluster: Cluster) -> None:
    wide = task(resources=Resources(cpu=10, memory_mb=10**9))
    planned = look(cluster, job("web", group("web", wide)))
    (waiting,) = planned.evaluations
    assert planned.failed["web"].dimension_exhausted == {"memory": 1}
    assert (waiting.status, waiting.snapshot_index, waiting.create_index) == ("blocked", 0, 0)


@pytest.mark.parametrize(
    ("fields", "launch"),
    [
        ({"periodic": Periodic(specs=["0 0 1 1 *"])}, True),
        ({"periodic": Periodic(specs=["0 0 1 1 *"], enabled=False)}, False),
        ({"parameterized_job": Parameterized()}, False),
    ],
)
async def test_parent_job_is_planned_as_one_of_its_children(
    cluster: Cluster, fields: dict[str, Any], launch: bool
) -> None:
    planned = look(cluster, job("web", type="batch", **fields))
    assert planned.annotations.desired_tg_updates == {"web": DesiredUpdates(place=1)}
    assert (planned.next_launch is not None) == launch


async def test_plan_uses_the_number_of_the_next_version(cluster: Cluster) -> None:
    await running(cluster, BEFORE)
    await running(cluster, CHANGES["more"])
    planned = look(cluster, BEFORE)
    assert counts(planned) == {"in_place_update": 2, "stop": 2}


async def test_external_listener_on_a_static_port_is_reported_unless_steward_holds_the_port(
    cluster: Cluster,
) -> None:
    await cluster.join(node())
    network = Network(
        mode="host",
        reserved_ports=[Port(label="web", value=8080), Port(label="db", value=5432)],
        dynamic_ports=[Port(label="any")],
    )
    wanted = job("web", group("web", networks=[network]))
    assert static_ports(wanted) == [("web", 8080), ("db", 5432)]
    stranger = PortListener(8080, "tcp", "192.0.2.7", "www-data")

    def told() -> list[str]:
        return cluster.store.read(lambda db: external_port_listeners(db, wanted, [stranger]))

    assert told() == [
        'port "web" is in use: a program of user www-data listens on 192.0.2.7:8080 (tcp)'
    ]
    await cluster.register(wanted)
    await cluster.work()
    assert told() == []
