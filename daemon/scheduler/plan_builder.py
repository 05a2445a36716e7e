"""A plan under construction.

Several decisions may change one allocation: for example, one decision stops it, and another stores
the ID of its replacement. The builder keeps only the final state of each allocation.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from daemon.scheduler import reschedule
from daemon.scheduler.alloc_sets import LOST, is_on_lost_node
from daemon.scheduler.nodes.feasibility import escapes_class
from daemon.scheduler.nodes.placement import PlacementFailure, Placer
from daemon.scheduler.rollout import Rollout
from daemon.scheduler.state import ClusterState, Eviction, Plan
from storage.records.allocation import Allocation, ClientStatus, DesiredStatus
from storage.records.evaluation import (
    DesiredUpdates,
    EvalStatus,
    Evaluation,
    PlacementMetric,
    PlanAnnotations,
    Trigger,
)
from storage.records.job import Job
from storage.records.node import Node
from storage.records.times import rfc3339

DELAYED = "created for delayed rescheduling"
NO_ROOM = "created to place remaining allocations"


class PlanBuilder:
    """The plan of one evaluation under construction."""

    def __init__(
        self, state: ClusterState, evaluation: Evaluation, *, now: int, ids: Iterator[str]
    ) -> None:
        """Start a plan; `now` is in nanoseconds, and `ids` returns IDs for new objects."""
        self.placed: list[Allocation] = []
        self.joined: list[Allocation] = []  # updated in place and moved to another deployment
        self.queued: dict[str, int] = {}
        self.counts: dict[str, DesiredUpdates] = {}
        self._changed: dict[str, Allocation] = {}
        self._evaluations: list[Evaluation] = []
        self._state = state
        self._evaluation = evaluation
        self._now = now
        self._ids = ids

    # --- allocations ---

    def stop(self, allocation: Allocation, description: str, *, lost: bool = False) -> None:
        """Stop an allocation; `lost` means that its node is lost."""
        current = self._changed.get(allocation.id, allocation)
        stopped = msgspec.structs.replace(
            current,
            desired_status=DesiredStatus.STOP,
            desired=msgspec.structs.replace(current.desired, description=description),
            client_status=ClientStatus.LOST if lost else current.client_status,
        )
        self.change(stopped)

    def change(self, allocation: Allocation) -> None:
        """Replace the state of an existing allocation."""
        self._changed[allocation.id] = msgspec.structs.replace(allocation, modify_time=self._now)

    def place(self, allocation: Allocation, previous: Allocation | None) -> None:
        """Add a new allocation, and store its ID in the replaced allocation `previous`."""
        self.placed.append(allocation)
        if previous is not None:
            current = self._changed.get(previous.id, previous)
            desired = msgspec.structs.replace(current.desired, next_allocation=allocation.id)
            self.change(msgspec.structs.replace(current, desired=desired))

    def update_in_place(self, allocation: Allocation, version: int, deployment_id: str) -> None:
        """Update a running allocation to a new version in place.

        A new deployment resets the health of the allocation.
        """
        updated = msgspec.structs.replace(
            allocation, job_version=version, eval_id=self._evaluation.id
        )
        if deployment_id and deployment_id != allocation.deployment_id:
            updated = msgspec.structs.replace(updated, deployment_id=deployment_id, health=None)
            self.joined.append(updated)
        self.change(updated)

    def end_lost(self, allocations: Iterable[Allocation], nodes: Mapping[str, Node]) -> None:
        """Mark stopping allocations on lost nodes as lost."""
        for allocation in allocations:
            stopping = allocation.desired_status != DesiredStatus.RUN
            if stopping and is_on_lost_node(allocation, nodes):
                self.stop(allocation, LOST, lost=True)

    # --- evaluations ---

    def reschedule_later(self, job: Job, retries: Iterable[tuple[int, Allocation]]) -> None:
        """Create evaluations for delayed reschedules.

        Their IDs are stored in the failed allocations.
        """
        for retry_time, allocations in reschedule.group_by_time(retries):
            follow_up = msgspec.structs.replace(
                self._evaluation_after(Trigger.ALLOC_RESCHEDULE, EvalStatus.PENDING, DELAYED),
                type=job.type,
                job_modify_index=job.modify_index,
                wait_until=rfc3339(retry_time),
            )
            self._evaluations.append(follow_up)
            for allocation in allocations:
                current = self._changed.get(allocation.id, allocation)
                desired = msgspec.structs.replace(current.desired, followup_eval_id=follow_up.id)
                self.change(msgspec.structs.replace(current, desired=desired))

    def _waiting(self, job: Job, placer: Placer, node_id: str) -> Evaluation:
        """Return the blocked evaluation, with the placement failures and feasible node classes.

        If the current evaluation was blocked before, it is blocked again. Otherwise, a new
        evaluation is created.
        """
        waited = self._evaluation.status == EvalStatus.BLOCKED
        escaped = escapes_class(job)
        return msgspec.structs.replace(
            self._evaluation if waited else self._new_waiting(),
            node_id=node_id,
            modify_time=self._now,
            class_eligibility=None if escaped else placer.eligibility() or None,
            escaped_computed_class=escaped,
            failed_tg_allocs=_metrics(placer.failures),
        )

    def _new_waiting(self) -> Evaluation:
        return self._evaluation_after(Trigger.QUEUED_ALLOCS, EvalStatus.BLOCKED, NO_ROOM)

    def _evaluation_after(
        self, trigger: Trigger, status: EvalStatus, description: str
    ) -> Evaluation:
        """Return a new evaluation of the same job, created by the current evaluation."""
        present = self._evaluation
        return Evaluation(
            id=next(self._ids),
            namespace=present.namespace,
            priority=present.priority,
            type=present.type,
            triggered_by=trigger,
            job_id=present.job_id,
            status=status,
            status_description=description,
            job_modify_index=present.job_modify_index,
            previous_eval=present.id,
            snapshot_index=self._state.index,
            create_index=0,
            modify_index=0,
            create_time=self._now,
            modify_time=self._now,
        )

    # --- plan ---

    def plan(self, rollout: Rollout, placer: Placer, *, wait: bool, node_id: str = "") -> Plan:
        """Return the plan.

        With `wait`, unplaced allocations get a blocked evaluation. If `node_id` is set, the blocked
        evaluation is only for this node.
        """
        job = self._state.job
        waits = wait and job is not None and placer.failures
        evicted = self._evictions(placer)
        return Plan(
            job_modify_index=job.job_modify_index if job else 0,
            place=tuple(self.placed),
            change=tuple(self._changed.values()),
            evict=evicted,
            displaced=self._displaced(evicted),
            deployments=rollout.changes(),
            evaluations=tuple(self._evaluations),
            blocked=self._waiting(job, placer, node_id) if job and waits else None,
            failed=_metrics(placer.failures),
            queued=self.queued,
            annotations=PlanAnnotations(desired_tg_updates=self.counts),
            deployment_id=rollout.id,
        )

    def _evictions(self, placer: Placer) -> tuple[Eviction, ...]:
        """Return the preemptions for the placed allocations, and count them per group."""
        evictions = [
            Eviction(victim, alloc.id)
            for alloc in self.placed
            for victim in placer.evicted.get(alloc.id, ())
        ]
        groups = Counter(
            alloc.task_group for alloc in self.placed for _ in placer.evicted.get(alloc.id, ())
        )
        for name, number in groups.items():
            counts = self.counts.get(name, DesiredUpdates())
            self.counts[name] = msgspec.structs.replace(counts, preemptions=number)
        return tuple(evictions)

    def _displaced(self, evictions: Iterable[Eviction]) -> tuple[Evaluation, ...]:
        """Return one evaluation for each job with preempted allocations."""
        first = {
            (eviction.holder.namespace, eviction.holder.job_id): eviction.holder
            for eviction in evictions
        }
        return tuple(
            msgspec.structs.replace(
                self._evaluation_after(Trigger.PREEMPTION, EvalStatus.PENDING, ""),
                namespace=holder.namespace,
                job_id=holder.job_id,
                type=holder.job_type,
                priority=holder.priority,
                job_modify_index=0,
                snapshot_index=0,
                previous_eval="",
            )
            for holder in first.values()
        )


def _metrics(failures: Mapping[str, PlacementFailure]) -> dict[str, PlacementMetric]:
    return {name: failure.metric() for name, failure in failures.items()}
