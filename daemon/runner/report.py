"""What the runner reports of its allocations: first in memory, then, together, in the store.

Tasks never wait for the disk. What changes while a write is under way goes into the next one, so
a short task costs two writes however much happens to it, and a burst of them shares its writes.
When the disk is full, reports wait and are tried again; none is lost and nothing stops.
"""

import logging
from collections.abc import Callable, Iterator, Mapping

import msgspec
import trio

from daemon.clock import Clock
from daemon.runner.lifecycle import client_status
from daemon.scheduler.reschedule import due_at
from storage import origin
from storage.errors import StorageUnavailable
from storage.queries import allocations, deployments, evaluations, job_status, jobs, services
from storage.records.allocation import (
    CLIENT_TERMINAL,
    Allocation,
    Client,
    ClientStatus,
    DeploymentHealth,
    DesiredStatus,
    TaskEvent,
    TaskState,
)
from storage.records.evaluation import EvalStatus, Evaluation, Trigger
from storage.records.group import ReschedulePolicy
from storage.records.job import Job
from storage.records.service import Offer
from storage.records.times import rfc3339
from storage.store import Store
from storage.writer import Transaction

_MOST = 32  # allocations in one write: more would keep others from the loop for too long
# After a write of more than a few reports the next one waits a little: in a burst of short tasks the
# start and the end of each then go together, for half the work (bench: dispatch).
_FEW = 3
_PACE = 0.005  # seconds
_RETRY = 1.0  # seconds until a full disk is tried again
_LAST_WORD = 1.0  # seconds that the end of the daemon waits for reports

_log = logging.getLogger("steward.runner")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be stored of an allocation: its present state, and what has happened since."""

    alloc_id: str
    states: dict[str, TaskState]
    events: dict[str, list[TaskEvent]]
    handles: dict[str, bytes]
    deployment_id: str  # for which the health was found
    healthy: bool | None
    healthy_at: int
    ended_for: str  # why it had to end, said in place of how its tasks ended
    services: list[Offer] | None  # that are registered now; None: as before
    evaluation_id: str  # for the evaluation that a failure makes
    now: int


States = Mapping[str, TaskState]


class Report:
    """The client half of one allocation, ahead of the store."""

    def __init__(
        self,
        reports: "Reports",
        allocation: Allocation,
        services: Callable[[], list[Offer]] = list,
    ) -> None:
        """`services` tells what is registered at the moment."""
        self._reports = reports
        self._services: Callable[[], list[Offer]] = services
        self._registered: list[Offer] | None = None  # as the store knows it
        self.alloc_id = allocation.id
        self.states = dict(allocation.client.task_states or {})
        self._deployment_id = ""
        self.healthy: bool | None = None
        self._healthy_at = 0
        self.ask_for_health(allocation)
        self.ended_for = ""
        self._events: dict[str, list[TaskEvent]] = {}
        self._handles: dict[str, bytes] = {}
        self._stored: trio.Event | None = None

    def event(self, task: str, event: TaskEvent) -> None:
        """Note what has happened to a task; `publish` follows, now or with what comes next."""
        self._events.setdefault(task, []).append(event)

    def handle(self, task: str, handle: bytes) -> None:
        """Note how to find a task again."""
        self._handles[task] = handle

    def ask_for_health(self, allocation: Allocation) -> None:
        """Begin anew with the health that the scheduler knows, or asks for."""
        self._deployment_id = allocation.deployment_id
        self.healthy = allocation.health.healthy if allocation.health else None

    def health(self, now: int, *, healthy: bool) -> None:
        """Note whether the allocation came up well."""
        self.healthy, self._healthy_at = healthy, now
        self.publish()

    def publish(self) -> None:
        """Bring everything that was noted to the store, soon."""
        if self._stored is None:
            self._stored = trio.Event()
        self._reports.add(self)

    def publish_services(self) -> None:
        """Bring what is registered to the store, if that is not what it knows."""
        if self._services() != self._registered:
            self.publish()

    async def stored(self) -> None:
        """Return when everything that was published is stored."""
        if self._stored is not None:
            await self._stored.wait()

    def take(self, now: int, evaluation_id: str) -> Snapshot:
        """Return what is to be stored now; events are handed over."""
        events, self._events = self._events, {}
        handles, self._handles = self._handles, {}
        before, self._registered = self._registered, self._services()
        return Snapshot(
            alloc_id=self.alloc_id,
            states=dict(self.states),
            events=events,
            handles=handles,
            deployment_id=self._deployment_id,
            healthy=self.healthy,
            healthy_at=self._healthy_at,
            ended_for=self.ended_for,
            services=None if self._registered == before else self._registered,
            evaluation_id=evaluation_id,
            now=now,
        )

    def was_stored(self) -> None:
        """Wake who waits for it."""
        if self._stored is not None:
            self._stored.set()
            self._stored = None


class Reports:
    """The reports that wait for the store, and the one task that brings them there."""

    def __init__(self, store: Store, clock: Clock, ids: Iterator[str]) -> None:
        self._store, self._clock, self._ids = store, clock, ids
        self._waiting: dict[str, Report] = {}
        self._arrived = trio.Event()
        self._silent = False

    def add(self, report: Report) -> None:
        """Let a report be stored."""
        if not self._silent:
            self._waiting[report.alloc_id] = report
            self._arrived.set()

    def silence(self) -> None:
        """Store nothing any more: what happens from now on is not the tasks' doing."""
        self._silent = True
        self._waiting.clear()

    async def run(self) -> None:
        """Store reports until cancelled, and then what still waits, if the disk is quick."""
        try:
            while True:
                if not self._waiting:
                    self._arrived = trio.Event()
                    await self._arrived.wait()
                if await self._store_some() > _FEW:
                    await trio.sleep(_PACE)
        finally:
            with trio.move_on_after(_LAST_WORD, shield=True):
                while self._waiting:
                    await self._store_some()

    async def _store_some(self) -> int:
        """Store what has waited longest; return of how many allocations."""
        chosen = list(self._waiting.values())[:_MOST]
        for report in chosen:
            del self._waiting[report.alloc_id]
        now = self._clock.now()
        snapshots = [report.take(now, next(self._ids)) for report in chosen]

        def write(tx: Transaction) -> list[Allocation | None]:
            return [store_snapshot(tx, snapshot) for snapshot in snapshots]

        while True:
            try:
                stored = await self._store.write(write)
                break
            except StorageUnavailable as error:
                _log.warning("reports of %d allocations wait: %s", len(chosen), error)
                await trio.sleep(_RETRY)
        for report in chosen:
            if report.alloc_id not in self._waiting:
                report.was_stored()
        for allocation, snapshot in zip(stored, snapshots, strict=True):
            if allocation is not None:
                _tell(allocation, snapshot.events)
        return len(chosen)


def _tell(allocation: Allocation, events: Mapping[str, list[TaskEvent]]) -> None:
    """Log what happened to the tasks of an allocation; what was said of it may hold secrets."""
    keys = {
        "alloc_id": allocation.id,
        "eval_id": allocation.eval_id,
        "namespace": allocation.namespace,
        "job_id": allocation.job_id,
    }
    with origin.serving(allocation.request_id):
        for task, happened in events.items():
            for event in happened:
                _log.info(
                    "allocation %s of job %s, task %s: %s",
                    *(allocation.id, allocation.job_id, task, event.type),
                    extra={"keys": {**keys, "task": task, "event": event.type}},
                )


def store_snapshot(tx: Transaction, snapshot: Snapshot) -> Allocation | None:
    """Store a report and return its allocation; of one that was purged, nothing.

    A failure that may be rescheduled makes an evaluation in the same write, unless its job is not
    wanted any more: so the scheduler may replace what failed, and a crash in between loses neither.
    """
    before = allocations.find(tx, snapshot.alloc_id)
    if before is None:
        return None
    tx.request_id = before.request_id
    status, description = client_status(snapshot.states.values())
    if snapshot.ended_for and status in CLIENT_TERMINAL:
        description = snapshot.ended_for
    after = msgspec.structs.replace(
        before,
        client_status=status,
        client=Client(description=description, task_states=snapshot.states),
        health=_health(before, snapshot),
    )
    allocations.set_client(tx, after, snapshot.now)
    if after.health != before.health:
        deployments.count_late_health(tx, before, after, snapshot.now)
    allocations.add_events(tx, snapshot.alloc_id, snapshot.events)
    if snapshot.services is not None and not after.client_terminal:
        services.sync(tx, snapshot.alloc_id, snapshot.services)
    for task, handle in snapshot.handles.items():
        allocations.set_handle(tx, snapshot.alloc_id, task, handle)
    if status == ClientStatus.FAILED and before.client_status not in CLIENT_TERMINAL:
        _evaluate(tx, after, snapshot)
    job_status.settle(tx, after.namespace, after.job_id)
    return after


def _health(before: Allocation, snapshot: Snapshot) -> DeploymentHealth | None:
    known = before.health
    if snapshot.healthy is None or snapshot.deployment_id != before.deployment_id:
        return known
    if known is not None and known.healthy == snapshot.healthy:
        return known
    return msgspec.structs.replace(
        known or DeploymentHealth(),
        healthy=snapshot.healthy,
        timestamp=rfc3339(snapshot.healthy_at or snapshot.now),
    )


def _reschedule_policy(tx: Transaction, job: Job, one: Allocation) -> ReschedulePolicy | None:
    """Return what the version of an allocation says about rescheduling it."""
    if one.job_version != job.version:
        job = jobs.version(tx, one.namespace, one.job_id, one.job_version) or job
    group = job.group(one.task_group)
    return group.reschedule_policy if group else None


def _evaluate(tx: Transaction, allocation: Allocation, snapshot: Snapshot) -> None:
    job = jobs.current(tx, allocation.namespace, allocation.job_id)
    if job is None or job.stop or allocation.desired_status != DesiredStatus.RUN:
        return
    if due_at(allocation, _reschedule_policy(tx, job, allocation)) is None:
        return
    evaluation = Evaluation(
        id=snapshot.evaluation_id,
        namespace=job.namespace,
        priority=job.priority,
        type=job.type,
        triggered_by=Trigger.ALLOC_FAILURE,
        job_id=job.id,
        status=EvalStatus.PENDING,
        create_index=0,
        modify_index=0,
        create_time=0,
        modify_time=0,
    )
    evaluations.put(tx, evaluation, snapshot.now)
