"""Report allocation states and task events to the store, batched.

Tasks never wait for the disk. All changes that arrive during a write are stored by the next write.
A task therefore needs two writes, regardless of its number of events. A batch task that ends within
`SHORT_TASK` seconds needs only one. In a burst, several tasks share a write. When the disk is full,
reports wait and are retried; no report is lost.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import trio

from daemon.clock import Clock
from daemon.fences import Fences, concerns_every_unit
from daemon.runner.core.lifecycle import client_status
from daemon.scheduler.reschedule import due_at
from storage import request_context
from storage.errors import StorageUnavailable
from storage.queries import (
    allocations,
    deployments,
    evaluations,
    job_status,
    jobs,
    runs,
    services,
)
from storage.records.allocation import (
    CLIENT_TERMINAL,
    Allocation,
    AttemptStop,
    ClientState,
    ClientStatus,
    DeploymentHealth,
    DesiredStatus,
    NetworkStatus,
    TaskEvent,
    TaskState,
)
from storage.records.codec import encode
from storage.records.evaluation import EvalStatus, Evaluation, Trigger
from storage.records.flow import FlowRun
from storage.records.group import ReschedulePolicy
from storage.records.job import JobListing, JobType
from storage.records.service import ServiceAddress
from storage.records.times import rfc3339
from storage.store import Store
from storage.writer import Transaction

_MOST = 32  # allocations per write; more would block the event loop for too long
# After a write of more than a few reports, the next write waits briefly. In a burst of short tasks,
# the start and the end of each task then share a write, which halves the load (bench: dispatch).
_FEW = 3
_PACE = 0.005  # seconds
# More reports take longer than the event loop permits. The loop would begin the write and undo it,
# and a thread would repeat it.
_MOST_ON_LOOP = 6
# The report of a batch task's start may wait this long, so that start and end share a write.
# Nomad's client sends its reports every 200 ms.
SHORT_TASK = 0.02  # seconds
_FENCED = "report"
_RETRY = 1.0  # seconds between retries when the disk is full
_SOON = 5.0  # seconds that a stop or a request waits until the store has its report
_LAST_WORD = 1.0  # seconds that the daemon's shutdown waits for reports

_log = logging.getLogger("steward.runner")


class AllocStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The unstored part of an allocation: its current state and its new events."""

    alloc_id: str
    states: dict[str, TaskState]
    events: dict[str, list[TaskEvent]]
    handles: dict[str, bytes]
    deployment_id: str  # the deployment for which the health counts
    healthy: bool | None
    healthy_at: int
    ended_for: str  # why the allocation had to end; replaces the description from its tasks
    services: list[ServiceAddress] | None  # current registrations; None: unchanged
    evaluation_id: str  # ID of the evaluation that a failure creates
    now: int
    outputs: dict[str, dict[str, str]] = {}  # by task, the outputs of ended tasks by name
    network: NetworkStatus | None = None
    stops: dict[str, AttemptStop] = {}
    shutdown_at: int = 0


States = Mapping[str, TaskState]


class AllocReport:
    """The latest client state of one allocation, including changes that are not stored yet."""

    def __init__(
        self,
        reports: "ReportQueue",
        allocation: Allocation,
        services: Callable[[], list[ServiceAddress]] = list,
    ) -> None:
        """Initialize; `reports` is the queue, and `services` returns the service registrations."""
        self._reports = reports
        self._services: Callable[[], list[ServiceAddress]] = services
        self._registered: list[ServiceAddress] | None = None  # registrations as stored
        self.alloc_id = allocation.id
        self.states = dict(allocation.client.task_states or {})
        self.network = allocation.client.network_status  # the network of a group in bridge mode
        self.stops = dict(allocation.client.stops or {})  # unfinished stops of attempts, by task
        self.shutdown_at = allocation.client.shutdown_at  # start of the group's shutdown delay, ns
        self._deployment_id = ""
        self.healthy: bool | None = None
        self._healthy_at = 0
        self.reset_health(allocation)
        self.ended_for = ""
        self._events: dict[str, list[TaskEvent]] = {}
        self._handles: dict[str, bytes] = {}
        self.outputs: dict[str, dict[str, str]] = {}  # outputs of a workflow step, by task and name
        self._new_outputs: dict[str, dict[str, str]] = {}
        self.succeeded: set[str] = set()  # tasks of a workflow step whose last attempt succeeded
        self.step = (allocation.namespace, allocation.job_id, allocation.task_group)
        self.version = allocation.job_version
        self._stored: trio.Event | None = None

    def event(self, task: str, event: TaskEvent) -> None:
        """Add a task event without publishing it; the next `publish` includes it."""
        self._events.setdefault(task, []).append(event)

    def handle(self, task: str, handle: bytes) -> None:
        """Record the handle with which the driver finds the task after a restart."""
        self._handles[task] = handle

    def add_outputs(self, task: str, outputs: dict[str, str]) -> None:
        """Record the outputs of an ended attempt, and replace those of earlier attempts."""
        self.outputs[task] = self._new_outputs[task] = outputs
        self.succeeded.discard(task)
        self._reports.expect_outputs(
            self, sum(len(encode(output)) for output in self._new_outputs.values())
        )

    def unstored_elsewhere(self) -> tuple[int, int]:
        """For the step and for the run, return the unstored output bytes of other allocations."""
        return self._reports.unstored_outputs(self)

    @property
    def has_new_outputs(self) -> bool:
        """Return whether the report has outputs that `take` has not returned yet."""
        return bool(self._new_outputs)

    def reset_health(self, allocation: Allocation) -> None:
        """Reset the health to the scheduler's value for the current deployment."""
        self._deployment_id = allocation.deployment_id
        self.healthy = allocation.health.healthy if allocation.health else None

    def health(self, now: int, *, healthy: bool) -> None:
        """Record and publish that the allocation became healthy or unhealthy at `now`."""
        self.healthy, self._healthy_at = healthy, now
        self.publish()

    def publish(self, *, within: float = 0.0) -> None:
        """Queue all recorded changes. Their write to the store begins within `within` seconds."""
        if self._stored is None:
            self._stored = trio.Event()
        self._reports.add(self, within=within)

    def publish_services(self) -> None:
        """Queue the service registrations if they differ from those in the store."""
        if self._services() != self._registered:
            self.publish()

    async def stored(self) -> None:
        """Wait until everything published is stored."""
        if self._stored is not None:
            await self._stored.wait()

    async def stored_soon(self) -> bool:
        """Wait until everything published is stored, but not long; return whether it is.

        On a full disk, the store accepts no reports until space is free.
        """
        with trio.move_on_after(_SOON) as limit:
            await self.stored()
        return not limit.cancelled_caught

    async def require_stored(self) -> None:
        """Wait until everything published is stored. Raises `StorageUnavailable`."""
        if not await self.stored_soon():
            fault = self._reports.fault or StorageUnavailable("the store is busy: try again later")
            raise type(fault)(str(fault))

    def take(self, now: int, evaluation_id: str) -> AllocStatus:
        """Return the unstored part of the report, which then counts as stored.

        `now` is the time of the write in nanoseconds. `evaluation_id` is the ID of the evaluation
        that the write may create.
        """
        events, self._events = self._events, {}
        handles, self._handles = self._handles, {}
        outputs, self._new_outputs = self._new_outputs, {}
        before, self._registered = self._registered, self._services()
        return AllocStatus(
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
            outputs=outputs,
            network=self.network,
            stops=dict(self.stops),
            shutdown_at=self.shutdown_at,
        )

    def was_stored(self) -> None:
        """Wake the callers that wait in `stored`."""
        if self._stored is not None:
            self._stored.set()
            self._stored = None


def _scopes(report: AllocReport) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Return the keys for counting unstored outputs: one key for the step, and one for the run."""
    return (report.version, *report.step), (report.version, *report.step[:2])


class ReportQueue:
    """The queue of unstored reports, and the loop that writes them."""

    def __init__(
        self, store: Store, clock: Clock, ids: Iterator[str], fences: Fences | None = None
    ) -> None:
        self._fences = fences or Fences(clock)
        self._store, self._clock, self._ids = store, clock, ids
        self._waiting: dict[str, AllocReport] = {}
        self._due = math.inf  # time on Trio's clock at which a waiting report must be stored
        self._outputs: dict[str, tuple[AllocReport, int]] = {}  # unstored bytes, by allocation
        # The sums of these bytes, by step and by run.
        self._of_scopes = Counter[tuple[object, ...]]()
        self._arrived = trio.Event()
        self._silent = False
        self.fault: StorageUnavailable | None = None  # why the last write was not possible

    def add(self, report: AllocReport, *, within: float = 0.0) -> None:
        """Add a report to the queue for the next write, which begins within `within` seconds."""
        if not self._silent:
            self._waiting[report.alloc_id] = report
            self._due = min(self._due, trio.current_time() + within)
            self._arrived.set()

    def expect_outputs(self, report: AllocReport, size: int) -> None:
        """Count `size` bytes of new outputs of the report as unstored, for its step and its run."""
        self._forget_outputs(report)
        self._outputs[report.alloc_id] = (report, size)
        self._of_scopes.update(dict.fromkeys(_scopes(report), size))

    def _forget_outputs(self, report: AllocReport) -> None:
        counted, size = self._outputs.pop(report.alloc_id, (report, 0))
        for scope in _scopes(counted):
            self._of_scopes[scope] -= size
            if not self._of_scopes[scope]:
                del self._of_scopes[scope]

    def unstored_outputs(self, report: AllocReport) -> tuple[int, int]:
        """For the report's step and run, return the unstored output bytes of other allocations.

        Bytes count as unstored until shortly after they are committed to the store.
        """
        _, own = self._outputs.get(report.alloc_id, (report, 0))
        of_step, of_run = (self._of_scopes[scope] - own for scope in _scopes(report))
        return of_step, of_run

    def stop_storing(self) -> None:
        """Stop storing reports, because the daemon itself is stopping the tasks."""
        self._silent = True
        self._waiting.clear()

    async def run(self) -> None:
        """Store reports until cancelled. Then store the remaining reports, within a time limit."""
        try:
            while True:
                while (pause := self._due - trio.current_time()) > 0:
                    self._arrived = trio.Event()
                    with trio.move_on_after(pause):
                        await self._arrived.wait()
                if await self._store_some() > _FEW:
                    await trio.sleep(_PACE)
        finally:
            with trio.move_on_after(_LAST_WORD, shield=True):
                while self._waiting:
                    await self._store_some()

    async def _store_some(self) -> int:
        """Store the oldest reports; return the number of allocations stored."""
        chosen = list(self._waiting.values())[:_MOST]
        for report in chosen:
            del self._waiting[report.alloc_id]
        self._due = -math.inf if self._waiting else math.inf
        now = self._clock.now()
        snapshots = [report.take(now, next(self._ids)) for report in chosen]

        stored = await self._stored(snapshots)
        for report in chosen:
            if not report.has_new_outputs:
                self._forget_outputs(report)
            if report.alloc_id not in self._waiting:
                report.was_stored()
        for allocation, snapshot in zip(stored, snapshots, strict=True):
            if allocation is not None:
                _log_events(allocation, snapshot.events)
        return len(chosen)

    async def _stored(self, snapshots: Sequence[AllocStatus]) -> list[Allocation | None]:
        """Store reports in one write; return the allocation of each report.

        An allocation is None if it was purged or if its report could not be stored. If a defective
        report makes the write fail, store each report separately.
        """

        def write(tx: Transaction) -> list[Allocation | None]:
            return store_snapshots(tx, snapshots)

        while True:
            try:
                is_long = len(snapshots) > _MOST_ON_LOOP
                stored = await self._store.write(write, is_long=is_long)
            except StorageUnavailable as error:
                self.fault = error
                _log.warning(
                    "the reports of %d allocations cannot be stored yet: %s", len(snapshots), error
                )
                await trio.sleep(_RETRY)
            except Exception as error:  # one bad report must not block the others
                if concerns_every_unit(error):
                    raise
                if len(snapshots) > 1:
                    return [(await self._stored([snapshot]))[0] for snapshot in snapshots]
                fault = self._fences.record(_FENCED, snapshots[0].alloc_id, error)
                if fault.is_closed:
                    _log.error(
                        "the state of allocation %s could not be stored", snapshots[0].alloc_id
                    )
                    return [None]
            else:
                self.fault = None
                return stored


def _log_events(allocation: Allocation, events: Mapping[str, list[TaskEvent]]) -> None:
    """Log the task events of an allocation without their messages, which may contain secrets."""
    keys = {
        "alloc_id": allocation.id,
        "eval_id": allocation.eval_id,
        "namespace": allocation.namespace,
        "job_id": allocation.job_id,
    }
    with request_context.request_scope(allocation.request_id):
        for task, happened in events.items():
            for event in happened:
                _log.info(
                    "allocation %s of job %s, task %s: %s",
                    *(allocation.id, allocation.job_id, task, event.type),
                    extra={"keys": {**keys, "task": task, "event": event.type}},
                )


class _WriteFacts:
    """The values that the reports of one write read only once, from allocations and jobs.

    The write does not change these values, except that `evaluated` and `has_outputs` also count
    its own changes.
    """

    def __init__(self, tx: Transaction, snapshots: Sequence[AllocStatus]) -> None:
        ids = [snapshot.alloc_id for snapshot in snapshots]
        self.allocations = allocations.find_all(tx, ids)
        self.evaluated: set[tuple[str, str, Trigger]] = set()
        self._tx = tx
        self._in_run: dict[tuple[str, str], bool] = {}
        self._listings: dict[tuple[str, str], JobListing | None] = {}
        self._runs: dict[tuple[str, str, int], FlowRun | None] = {}
        self._with_outputs: dict[tuple[str, str, int], bool] = {}

    def is_in_run(self, namespace: str, job_id: str) -> bool:
        """Return whether a run of a job has not ended."""
        key = (namespace, job_id)
        if key not in self._in_run:
            self._in_run[key] = runs.is_unfinished(self._tx, *key)
        return self._in_run[key]

    def listing(self, namespace: str, job_id: str) -> JobListing | None:
        """Return the listing values of the newest version of a job, or None."""
        key = (namespace, job_id)
        if key not in self._listings:
            self._listings[key] = jobs.listing(self._tx, *key)
        return self._listings[key]

    def run_of(self, allocation: Allocation) -> FlowRun | None:
        """Return the run to which an allocation belongs, or None."""
        key = (allocation.namespace, allocation.job_id, allocation.job_version)
        if key not in self._runs:
            self._runs[key] = runs.of_version(self._tx, *key)
        return self._runs[key]

    def has_outputs(self, run: FlowRun, outputs: Mapping[str, dict[str, str]]) -> bool:
        """Return whether a run has outputs, including the new `outputs` of an element."""
        key = (run.namespace, run.job_id, run.number)
        if any(outputs.values()):
            self._with_outputs[key] = True
        if key not in self._with_outputs:
            self._with_outputs[key] = runs.has_outputs(self._tx, run)
        return self._with_outputs[key]


def store_snapshots(tx: Transaction, snapshots: Sequence[AllocStatus]) -> list[Allocation | None]:
    """Store reports; return the allocation of each report, or None if it was purged.

    The summary of each job is refreshed only once, because a refresh takes milliseconds for a
    thousand groups. The summary of a job with notifications is refreshed after each report, so that
    no failure or recovery is missed.
    """
    stored, waiting = list[Allocation | None](), dict[tuple[str, str], str]()
    facts = _WriteFacts(tx, snapshots)
    notifies: dict[tuple[str, str], bool] = {}
    for snapshot in snapshots:
        alloc = store_snapshot(tx, snapshot, facts)
        stored.append(alloc)
        if alloc is None:
            continue
        key = (alloc.namespace, alloc.job_id)
        if key not in notifies:
            notifies[key] = job_status.has_notifications(tx, *key)
        if notifies[key]:
            job_status.refresh_summary(tx, *key)
        else:
            waiting[key] = alloc.request_id
    for key, request_id in waiting.items():
        tx.request_id = request_id
        job_status.refresh_summary(tx, *key)
    return stored


def store_snapshot(tx: Transaction, snapshot: AllocStatus, facts: _WriteFacts) -> Allocation | None:
    """Store a report and return its allocation, or None if the allocation was purged.

    The caller refreshes the summary of the allocation's job.

    A failure that may be rescheduled creates an evaluation in the same write, unless the job is
    stopped. The scheduler can then replace the allocation. A crash cannot separate the report from
    the evaluation.
    """
    before = facts.allocations.get(snapshot.alloc_id)
    if before is None:
        return None
    tx.request_id = before.request_id
    status, description = client_status(snapshot.states.values())
    if snapshot.ended_for and status in CLIENT_TERMINAL:
        description = snapshot.ended_for
    after = msgspec.structs.replace(
        before,
        client_status=status,
        client=ClientState(
            description=description,
            task_states=snapshot.states,
            network_status=snapshot.network,
            stops=snapshot.stops or None,
            shutdown_at=snapshot.shutdown_at,
        ),
        health=_health(before, snapshot),
    )
    known_tasks = before.client.task_states or {}
    allocations.set_client(tx, after, snapshot.now, is_first=not known_tasks)
    if after.health != before.health:
        deployments.count_late_health(tx, before, after, snapshot.now)
    # The first event of a task is stored with its first state.
    new_tasks = snapshot.events.keys() - known_tasks.keys()
    allocations.add_events(tx, snapshot.alloc_id, snapshot.events, new_tasks)
    if not after.client_terminal:
        # Nothing is registered before the first report.
        if snapshot.services or (snapshot.services is not None and known_tasks):
            services.replace_registrations(tx, snapshot.alloc_id, snapshot.services)
        # No later daemon needs the handle of a task whose allocation has ended.
        for task, handle in snapshot.handles.items():
            allocations.set_handle(tx, snapshot.alloc_id, task, handle)
    has_ended = status in CLIENT_TERMINAL and before.client_status not in CLIENT_TERMINAL
    if snapshot.outputs or has_ended:
        _store_outputs(tx, after, snapshot.outputs, facts)
    if has_ended:
        _evaluate(tx, after, snapshot, facts)
    facts.allocations[after.id] = after
    return after


def _store_outputs(
    tx: Transaction,
    allocation: Allocation,
    outputs: Mapping[str, dict[str, str]],
    facts: _WriteFacts,
) -> None:
    """Store the outputs of a step element, and delete the outputs of its earlier allocations."""
    if allocation.job_type != JobType.BATCH:
        return
    run = facts.run_of(allocation)
    if run is None or not facts.has_outputs(run, outputs):
        return
    element = (allocation.task_group, max(allocation.index, 0))
    is_replaced = allocation.desired_status != DesiredStatus.RUN
    runs.put_outputs(tx, run, *element, allocation.id, outputs, is_replaced=is_replaced)


def _health(before: Allocation, snapshot: AllocStatus) -> DeploymentHealth | None:
    health = before.health
    if snapshot.healthy is None or snapshot.deployment_id != before.deployment_id:
        return health
    if health is not None and health.healthy == snapshot.healthy:
        return health
    return msgspec.structs.replace(
        health or DeploymentHealth(),
        healthy=snapshot.healthy,
        timestamp=rfc3339(snapshot.healthy_at or snapshot.now),
    )


def _reschedule_policy(tx: Transaction, alloc: Allocation) -> ReschedulePolicy | None:
    """Return the reschedule policy from the job version of the allocation."""
    key = (alloc.namespace, alloc.job_id)
    job = jobs.version(tx, *key, alloc.job_version) or jobs.current(tx, *key)
    group = job.group(alloc.task_group) if job else None
    return group.reschedule_policy if group else None


def _evaluate(
    tx: Transaction, allocation: Allocation, snapshot: AllocStatus, facts: _WriteFacts
) -> None:
    """Create an evaluation if the scheduler must react to the end of an allocation.

    A failed allocation may have to be rescheduled. In a workflow, whenever an allocation ends,
    other steps may begin or the run may end. All allocations of a workflow that end in the same
    write share an evaluation.
    """
    is_failure = allocation.client_status == ClientStatus.FAILED
    is_in_run = facts.is_in_run(allocation.namespace, allocation.job_id)
    if not (is_failure or is_in_run):
        return
    job = facts.listing(allocation.namespace, allocation.job_id)
    if job is None:
        return
    is_rescheduled = (
        is_failure
        and not job.stop
        and allocation.desired_status == DesiredStatus.RUN
        and due_at(allocation, _reschedule_policy(tx, allocation)) is not None
    )
    if not (is_rescheduled or is_in_run):
        return
    trigger = Trigger.ALLOC_FAILURE if is_rescheduled else Trigger.RUN_STEP
    made = (job.namespace, job.id, trigger)
    if is_in_run and made in facts.evaluated:
        return
    facts.evaluated.add(made)
    evaluation = Evaluation(
        id=snapshot.evaluation_id,
        namespace=job.namespace,
        priority=job.priority,
        type=job.type,
        triggered_by=trigger,
        job_id=job.id,
        status=EvalStatus.PENDING,
        create_index=0,
        modify_index=0,
        create_time=0,
        modify_time=0,
    )
    evaluations.put(tx, evaluation, snapshot.now)
