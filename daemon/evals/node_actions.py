"""Node actions: evaluate, change eligibility, and drain.

Each action is one transaction that also creates the evaluations for the scheduler. Drained
allocations wait in a blocked evaluation for another node. On a single host, they wait until the
same node is eligible again.

A drain stops services immediately, because they do not complete. Batch and sysbatch jobs may run
until the deadline. System jobs are stopped last.
"""

from collections.abc import Iterator, Mapping
from functools import partial

import msgspec
import trio

from daemon.clock import Clock
from daemon.fences import TOPIC, Fences
from daemon.jobs.evaluate import new_evaluation
from storage.errors import Refused
from storage.queries import (
    allocations,
    evaluations,
    job_listings,
    job_status,
    jobs,
    nodes,
)
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation
from storage.records.base import SECOND
from storage.records.evaluation import Trigger
from storage.records.job import JobType
from storage.records.node import (
    DrainSpec,
    DrainStrategy,
    Eligibility,
    LastDrain,
    Node,
    NodeEvent,
    NodeStatus,
)
from storage.records.times import rfc3339
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

_SYSTEM = (JobType.SYSTEM, JobType.SYSBATCH)
_FENCED = "drain"
_SHOWN_EVENTS = 10  # events of a node that are kept, as in Nomad


class NodeChangeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an action: the created evaluations, and the index of the write."""

    index: int
    node: Node
    eval_ids: list[str]


async def evaluate_node(
    store: Store, node_id: str, ids: Iterator[str], *, now: int
) -> NodeChangeResult:
    """Create evaluations for all jobs with allocations on a node, and for all system jobs.

    Raises `Refused`.
    """

    def write(tx: Transaction) -> NodeChangeResult:
        node = _find(tx, node_id)
        eval_ids = _evaluate(tx, node, Trigger.NODE_UPDATE, ids, now)
        return NodeChangeResult(
            index=tx.index if eval_ids else tx.last_index(), node=node, eval_ids=eval_ids
        )

    return await store.write(write)


async def evaluate_down(store: Store, ids: Iterator[str], *, now: int) -> None:
    """Create evaluations for all jobs with allocations on nodes that are down.

    The scheduler marks these allocations as lost. When the daemon starts, a node is down if its
    pool was removed from the configuration.
    """

    def on_down(db: ReadSnapshot) -> list[Node]:
        down_nodes = [node for node in nodes.list_all(db) if node.status == NodeStatus.DOWN]
        return [node for node in down_nodes if allocations.to_run(db, node.id)]

    def write(tx: Transaction) -> None:
        for node in on_down(tx):
            _evaluate(tx, node, Trigger.NODE_UPDATE, ids, now)

    if store.read(on_down):
        await store.write(write)


async def set_eligibility(
    store: Store, node_id: str, eligibility: str, ids: Iterator[str], *, now: int
) -> NodeChangeResult:
    """Make a node eligible or ineligible. Raises `Refused`."""
    if eligibility not in list(Eligibility):
        raise Refused(f'invalid scheduling eligibility "{eligibility}"')

    def write(tx: Transaction) -> NodeChangeResult:
        node = _find(tx, node_id)
        if eligibility == node.scheduling_eligibility:
            return NodeChangeResult(index=tx.last_index(), node=node, eval_ids=[])
        if node.drain and eligibility == Eligibility.ELIGIBLE:
            raise Refused(
                "can not set node's scheduling eligibility to eligible while it is draining"
            )
        stored = _put(
            tx,
            msgspec.structs.replace(node, scheduling_eligibility=eligibility),
            f"Node marked as {eligibility} for scheduling",
            "NodeEligibility",
            now,
        )
        is_open = eligibility == Eligibility.ELIGIBLE
        eval_ids = _evaluate(tx, stored, Trigger.NODE_UPDATE, ids, now) if is_open else []
        return NodeChangeResult(index=tx.index, node=stored, eval_ids=eval_ids)

    return await store.write(write)


async def purge_node(
    store: Store, node_id: str, ids: Iterator[str], *, now: int
) -> NodeChangeResult:
    """Delete a node and register it again in the same write. Raises `Refused`.

    The node's drain, eligibility and events are deleted. Running allocations continue, and every
    job with allocations on the node is re-evaluated.
    """

    def write(tx: Transaction) -> NodeChangeResult:
        node = _find(tx, node_id)
        nodes.remove(tx, node)
        fresh = msgspec.structs.replace(
            node,
            drain=False,
            drain_strategy=None,
            last_drain=None,
            scheduling_eligibility=Eligibility.ELIGIBLE,
            events=[
                NodeEvent(message="Node registered", subsystem="Cluster", timestamp=rfc3339(now))
            ],
            create_index=0,
            status_updated_at=now // SECOND,
        )
        stored = nodes.put(tx, fresh, "NodeRegistration")
        eval_ids = _evaluate(tx, stored, Trigger.NODE_UPDATE, ids, now)
        return NodeChangeResult(index=tx.index, node=stored, eval_ids=eval_ids)

    return await store.write(write)


_FEW_CHANGES = 100  # metadata changes that the event loop applies within a millisecond


async def change_meta(
    store: Store,
    node_id: str,
    meta_changes: nodes.MetaChanges,
    static: Mapping[str, str],
    ids: Iterator[str],
    *,
    most: int,
    now: int,
) -> tuple[NodeChangeResult, nodes.MetaChanges]:
    """Change the dynamic metadata of a node; also return all stored changes of the node.

    The changes override the metadata in `static`, which comes from the configuration. A node stores
    at most `most` changes. Running allocations are not affected. Raises `Refused`.
    """

    def write(tx: Transaction) -> tuple[NodeChangeResult, nodes.MetaChanges]:
        node = _find(tx, node_id)
        merged = {**nodes.meta_changes(tx, node_id), **meta_changes}
        changes = {
            key: value for key, value in merged.items() if value is not None or key in static
        }
        if len(changes) > most:
            raise Refused(f"a node can have at most {most} metadata changes: set some keys to null")
        nodes.put_meta_changes(tx, node_id, changes)
        changed = nodes.with_meta(node, static, changes)
        if changed == node:
            return NodeChangeResult(index=tx.index, node=node, eval_ids=[]), changes
        stored = nodes.put(tx, changed, "NodeRegistration")
        eval_ids = _evaluate(tx, stored, Trigger.NODE_UPDATE, ids, now) if stored.ready else []
        return NodeChangeResult(index=tx.index, node=stored, eval_ids=eval_ids), changes

    return await store.write(write, is_long=len(meta_changes) > _FEW_CHANGES)


def offer_volumes(
    tx: Transaction,
    node_id: str,
    offered: Mapping[str, dict[str, object] | None],
    ids: Iterator[str],
    now: int,
) -> NodeChangeResult:
    """Add or remove volumes of a node, and re-evaluate jobs that wait for a volume.

    `offered` maps names to volumes; a volume of None is removed.
    """
    node = _find(tx, node_id)
    merged: dict[str, dict[str, object] | None] = {**node.host_volumes, **offered}
    present = {name: volume for name, volume in merged.items() if volume is not None}
    changed = msgspec.structs.replace(node, host_volumes=present)
    stored = nodes.put(tx, changed, "NodeRegistration")
    eval_ids = _evaluate(tx, stored, Trigger.NODE_UPDATE, ids, now) if stored.ready else []
    return NodeChangeResult(index=tx.index, node=stored, eval_ids=eval_ids)


async def drain_node(
    store: Store,
    node_id: str,
    spec: DrainSpec | None,
    ids: Iterator[str],
    *,
    mark_eligible: bool,
    meta: dict[str, str] | None,
    accessor: str,
    now: int,
) -> NodeChangeResult:
    """Start a drain of a node; without a `spec`, cancel the drain. Raises `Refused`.

    After a canceled drain, the node is eligible only with `mark_eligible`. `accessor` and `meta`
    identify the caller and the purpose in the record of the drain.
    """

    def write(tx: Transaction) -> NodeChangeResult:
        node = _find(tx, node_id)
        if spec is None:
            stored = _stop_draining(tx, node, mark_eligible=mark_eligible, now=now)
            eval_ids = _evaluate(tx, stored, Trigger.NODE_UPDATE, ids, now) if stored.ready else []
            return NodeChangeResult(index=tx.index, node=stored, eval_ids=eval_ids)
        started_at = rfc3339(now)
        draining = msgspec.structs.replace(
            node,
            drain=True,
            drain_strategy=DrainStrategy.of(spec, now),
            last_drain=LastDrain(
                started_at=started_at, updated_at=started_at, accessor_id=accessor, meta=meta
            ),
            scheduling_eligibility=Eligibility.INELIGIBLE,
        )
        stored = _put(tx, draining, "Node drain strategy set", "NodeDrain", now)
        _request_migration(tx, _due(tx, stored, now), now)
        eval_ids = _evaluate(tx, stored, Trigger.NODE_DRAIN, ids, now)
        return NodeChangeResult(index=tx.index, node=stored, eval_ids=eval_ids)

    return await store.write(write)


def _stop_draining(tx: Transaction, node: Node, *, mark_eligible: bool, now: int) -> Node:
    last = node.last_drain
    if last is not None and node.drain:
        last = msgspec.structs.replace(last, status="canceled", updated_at=rfc3339(now))
    eligibility = Eligibility.ELIGIBLE if mark_eligible else node.scheduling_eligibility
    without_drain = msgspec.structs.replace(
        node, drain=False, drain_strategy=None, last_drain=last, scheduling_eligibility=eligibility
    )
    return _put(tx, without_drain, "Node drain complete", "NodeDrain", now)


def _request_migration(tx: Transaction, leaving: list[Allocation], now: int) -> None:
    for alloc in leaving:
        transition = msgspec.structs.replace(alloc.desired.transition, migrate=True)
        desired = msgspec.structs.replace(alloc.desired, transition=transition)
        allocations.set_desired(tx, msgspec.structs.replace(alloc, desired=desired), now)


def _due(db: ReadSnapshot, node: Node, now: int) -> list[Allocation]:
    """Return the allocations that the drain must stop next."""
    allocs = _remaining_allocations(db, node)
    ends = node.drain_strategy.ends if node.drain_strategy else None
    if ends is not None and ends <= now:
        due = allocs
    else:
        other_allocations = [
            remaining_alloc
            for remaining_alloc in allocs
            if remaining_alloc.job_type != JobType.SYSTEM
        ]
        due = (
            [
                remaining_alloc
                for remaining_alloc in other_allocations
                if remaining_alloc.job_type == JobType.SERVICE
            ]
            if other_allocations
            else allocs
        )
    return [
        remaining_alloc for remaining_alloc in due if not remaining_alloc.desired.transition.migrate
    ]


def _remaining_allocations(db: ReadSnapshot, node: Node) -> list[Allocation]:
    """Return the allocations that must end before the drain is complete."""
    spares_system = node.drain_strategy is not None and node.drain_strategy.ignore_system_jobs
    allocs = allocations.to_run(db, node.id)
    return [alloc for alloc in allocs if not (spares_system and alloc.job_type in _SYSTEM)]


def _evaluate(
    tx: Transaction, node: Node, trigger: Trigger, ids: Iterator[str], now: int
) -> list[str]:
    """Create an evaluation for each job with allocations on a node, and for each system job."""
    job_keys = {(alloc.namespace, alloc.job_id) for alloc in allocations.to_run(tx, node.id)}
    eval_ids = []
    for namespace, job_id in sorted(job_keys | set(job_listings.on_every_node(tx))):
        job = jobs.current(tx, namespace, job_id)
        if job is None:
            continue
        evaluation = msgspec.structs.replace(
            new_evaluation(job, next(ids), trigger, job_modify_index=job.job_modify_index),
            node_id=node.id,
        )
        evaluations.put(tx, evaluation, now)
        job_status.refresh_summary(tx, namespace, job_id)
        eval_ids.append(evaluation.id)
    return eval_ids


def _find(db: ReadSnapshot, node_id: str) -> Node:
    node = nodes.find(db, node_id)
    if node is None:
        raise Refused("node not found")
    return node


def _put(tx: Transaction, node: Node, message: str, kind: str, now: int) -> Node:
    happened = NodeEvent(message=message, subsystem="Drain", timestamp=rfc3339(now))
    if kind == "NodeEligibility":
        happened = msgspec.structs.replace(happened, subsystem="Cluster")
    events = [*(node.events or ()), happened][-_SHOWN_EVENTS:]
    return nodes.put(tx, msgspec.structs.replace(node, events=events), kind)


# --- running drains ---


async def watch_drains(
    store: Store, clock: Clock, ids: Iterator[str], fences: Fences | None = None
) -> None:
    """Continue all drains: stop allocations in order, and record completed drains."""
    fences = fences or Fences(clock)
    while True:
        with store.watch("nodes/") as change:
            if not any(node.drain for node in store.read(nodes.list_all)):
                await change.wait()
                continue
        with store.watch("nodes/", "allocations/", TOPIC) as change:
            now = clock.now()
            paused = fences.paused_keys(_FENCED)
            draining = [
                node for node in store.read(nodes.list_all) if node.drain and node.id not in paused
            ]
            due = [
                node.id
                for node in draining
                if store.read(partial(_goes_on, node_id=node.id, now=now))
            ]
            if not due:
                deadlines = [node.drain_strategy.ends for node in draining if node.drain_strategy]
                deadlines.append(fences.next_time(_FENCED))
                next_one = min(
                    (deadline for deadline in deadlines if deadline and deadline > now),
                    default=None,
                )
                with trio.move_on_after(
                    float("inf") if next_one is None else (next_one - now) / SECOND
                ):
                    await change.wait()
                continue
        async with tolerate_disk_full("cannot continue a drain"):
            for node_id in due:
                with fences.around(_FENCED, node_id):
                    await store.write(partial(_go_on, node_id=node_id, ids=ids, now=now))


def _goes_on(db: ReadSnapshot, *, node_id: str, now: int) -> bool:
    node = _find(db, node_id)
    return node.drain and (not _remaining_allocations(db, node) or bool(_due(db, node, now)))


def _go_on(tx: Transaction, *, node_id: str, ids: Iterator[str], now: int) -> None:
    if not _goes_on(tx, node_id=node_id, now=now):
        return
    node = _find(tx, node_id)
    if leaving := _due(tx, node, now):
        _request_migration(tx, leaving, now)
        _evaluate(tx, node, Trigger.NODE_DRAIN, ids, now)
        return
    last = node.last_drain
    if last is not None:
        last = msgspec.structs.replace(last, status="complete", updated_at=rfc3339(now))
    done = msgspec.structs.replace(node, drain=False, drain_strategy=None, last_drain=last)
    _put(tx, done, "Node drain complete", "NodeDrain", now)
