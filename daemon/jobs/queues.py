"""Assign the slots of queues to waiting runs and steps.

A run enters its queue in the transaction that stores the run, and leaves the queue in the
transaction that ends the run. A step enters all its queues when it may begin, and its elements free
their slots when they end. In between, `grant_slots` grants slots: by priority, then by arrival. The
first run or step in a queue is never overtaken, so it eventually gets its slots even if it needs
several. A grant and the evaluation of its run are one write.

A step takes the slots of all its queues together, so an element never holds slots of one queue
while it waits for another. The order of steps is the same in all queues of a namespace, so two
steps never wait for each other.
"""

from collections.abc import Iterator
from functools import partial

from daemon.clock import Clock, wait_until
from daemon.fences import TOPIC, Fences
from daemon.jobs.evaluate import new_evaluation
from daemon.jobs.freezes import covering
from daemon.jobspec.steward_meta.job_keys import RUN_BEYOND, RUN_QUEUE, RUN_SLOTS, queue_of
from daemon.jobspec.steward_meta.step_keys import STEP_QUEUES, STEP_SLOTS
from storage.queries import concurrency, evaluations, freezes, job_status, jobs, runs, step_slots
from storage.queries.concurrency import Key
from storage.read_pool import ReadSnapshot
from storage.records.concurrency import MOST_QUEUES, QueueEntry, RunQueue, SlotState
from storage.records.evaluation import Trigger
from storage.records.flow import (
    SLOTS_FREE,
    Beyond,
    FlowRun,
    FlowStatus,
    QueueUse,
    StepSlots,
    queues_used,
)
from storage.records.freeze import Strength
from storage.records.job import Job
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

_FENCED = "queue"
_AT_ONCE = 32  # runs or steps that get slots by one write, or runs that it cancels


def queue_of_runs(job: Job) -> RunQueue:
    """Return the queue that the runs of a job enter; the job must name a queue."""
    return RunQueue(
        name=queue_of(job), slots=RUN_SLOTS.of(job.meta), beyond=RUN_BEYOND.of(job.meta)
    )


async def grant_slots(store: Store, clock: Clock, ids: Iterator[str], fences: Fences) -> None:
    """Grant slots whenever runs or steps arrive, slots become free, or limits change."""
    while True:
        with store.watch(SLOTS_FREE, TOPIC) as change:
            paused = fences.paused_keys(_FENCED)
            most = _AT_ONCE + len(paused)
            ready = [
                key
                for key in store.read(partial(concurrency.changed, most=most))
                if "/".join(key) not in paused
            ]
            if not ready:
                await wait_until(fences.next_time(_FENCED), clock, change)
                continue
        async with tolerate_disk_full("cannot assign slots of queues"):
            for key in ready:
                with fences.around(_FENCED, "/".join(key)):
                    await store.write(partial(serve, key=key, now=clock.now(), ids=ids))


def has_work(db: ReadSnapshot, key: Key) -> bool:
    """Return whether the queue needs an action: a grant of slots, or a policy to apply."""
    step = step_slots.first(db, key)
    if step is not None and _elements_that_fit(db, step):
        return True
    head = next(iter(concurrency.waiters(db, key, 1)), None)
    if head is None:
        return False
    fits = _fits(head, concurrency.in_use(db, key), concurrency.limit(db, key))
    return fits or any(
        _acts(db, queue_entry) for queue_entry in concurrency.not_patient(db, key, _AT_ONCE)
    )


def _fits(entry: QueueEntry, in_use: int, limit: int) -> bool:
    """Return whether enough slots are free for a run.

    A run that needs more than the limit gets all slots.
    """
    return in_use + min(entry.slots, limit) <= limit


def _acts(db: ReadSnapshot, entry: QueueEntry) -> bool:
    """Return whether the overflow policy of a run without slots must cancel this or another run."""
    return any(True for _ in _to_cancel(db, entry))


def _to_cancel(db: ReadSnapshot, entry: QueueEntry) -> Iterator[tuple[FlowRun, str, bool]]:
    """Yield the runs that the overflow policy of a waiting run cancels.

    Each item has the canceled run, the reason, and whether this run already holds slots.
    """
    entries: list[QueueEntry] = []
    reason = f'run {entry.number} of {entry.job_id} replaced it in the queue "{entry.name}"'
    match entry.beyond:
        case Beyond.QUEUE:
            return
        case Beyond.SKIP:
            entries, reason = [entry], f'no slot of the queue "{entry.name}" was free'
        case Beyond.NEWEST:
            entries = concurrency.of_family(db, entry, SlotState.WAITING, _AT_ONCE)
        case Beyond.CANCEL_OLDEST:
            entries = concurrency.of_family(db, entry, SlotState.HOLDING, 1)
    for queue_entry in entries:
        run = runs.find(db, queue_entry.namespace, queue_entry.job_id, queue_entry.number)
        if run is not None and run.status == FlowStatus.RUNNING:
            yield run, reason, queue_entry.state == SlotState.HOLDING


def serve(tx: Transaction, key: Key, now: int, ids: Iterator[str]) -> None:
    """Grant slots of a queue to the first runs; then apply the policies of runs without a slot.

    A run that a freeze holds keeps its position, and later runs can overtake it.
    """
    limit, in_use = concurrency.limit(tx, key), concurrency.in_use(tx, key)
    is_any_frozen = freezes.any_open(tx)
    for entry in concurrency.waiters(tx, key, _AT_ONCE):
        if is_any_frozen and _hold(tx, entry, now):
            _evaluate(tx, entry.namespace, entry.job_id, now, next(ids))
            continue
        if not _fits(entry, in_use, limit):
            _cancel(tx, key, now, ids)
            break
        in_use += entry.slots
        concurrency.grant(tx, entry, now)
        _evaluate(tx, entry.namespace, entry.job_id, now, next(ids))
    _serve_steps(tx, key, now, ids)
    if not has_work(tx, key):
        concurrency.served(tx, key)


def _hold(tx: Transaction, entry: QueueEntry, now: int) -> bool:
    """Return whether a freeze holds a run that waits for slots; if so, record that."""
    job = jobs.current(tx, entry.namespace, entry.job_id)
    run = runs.find(tx, entry.namespace, entry.job_id, entry.number)
    if job is not None and run is not None and run.version != job.version:
        from daemon.jobs.run_updates import version_of_run  # imported late: few runs are replaced

        job = version_of_run(tx, job, run) or job
    freeze = covering(tx, job, now) if job is not None else None
    if freeze is None or (
        freeze.strength == Strength.BEGIN
        and runs.has_opened(tx, entry.namespace, entry.job_id, entry.number)
    ):
        return False
    freezes.hold(tx, (entry.namespace, entry.job_id), freeze.id, now)
    return True


def _serve_steps(tx: Transaction, key: Key, now: int, ids: Iterator[str]) -> None:
    """Grant slots to the first steps in the queue.

    Each of these steps gets slots for as many of its elements as possible.
    """
    granted = dict[Key, None]()
    for _ in range(_AT_ONCE):
        head = step_slots.first(tx, key)
        if head is None or not (number := _elements_that_fit(tx, head)):
            break
        step_slots.grant(tx, head, number, now)
        granted[head.namespace, head.job_id] = None
    for namespace, job_id in granted:
        _evaluate(tx, namespace, job_id, now, next(ids))


def _elements_that_fit(db: ReadSnapshot, step: StepSlots) -> int:
    """Return how many further elements of a waiting step can now get slots of all its queues.

    The number is 0 if another step is ahead in one of the queues. An element that needs more slots
    than a queue has takes all of them.
    """
    number = step.wanted - step.held
    for name in step.names:
        key = (step.namespace, name)
        head, limit = step_slots.first(db, key), concurrency.limit(db, key)
        if head is None or head.order != step.order:
            return 0
        free = limit - concurrency.in_use(db, key)
        number = min(number, max(free, 0) // min(step.slots, limit))
    return number


def _cancel(tx: Transaction, key: Key, now: int, ids: Iterator[str]) -> None:
    """Cancel runs according to the overflow policies of the waiting runs.

    `serve` calls this function when too few slots are free for the first waiting run.
    """
    for entry in concurrency.not_patient(tx, key, _AT_ONCE):
        for run, reason, has_begun in _to_cancel(tx, entry):
            # Clean-up steps still run, as after a cancellation by a person.
            stopping = run.stopping(reason, cleans_up=has_begun)
            runs.put(tx, stopping, run)
            _evaluate(tx, run.namespace, run.job_id, now, next(ids))


def _evaluate(tx: Transaction, namespace: str, job_id: str, now: int, eval_id: str) -> None:
    job = jobs.current(tx, namespace, job_id)
    if job is None:
        return
    index = job.job_modify_index
    evaluation = new_evaluation(job, eval_id, Trigger.RUN_STEP, job_modify_index=index)
    evaluations.put(tx, evaluation, now)
    job_status.refresh_summary(tx, namespace, job_id)


def queue_errors(db: ReadSnapshot, job: Job) -> Iterator[str]:
    """Yield the errors of the queues that a job names.

    A queue is for runs or for steps, and the first job that names it decides. A namespace has a
    limited number of queues.
    """
    yield from _use_errors(db, job)
    key = (job.namespace, queue_of(job))
    # For a parent, the name may contain meta of a dispatch, which is not known yet.
    if job.launches_children or not key[1] or concurrency.has_run(db, key):
        return
    if concurrency.with_runs(db, job.namespace, MOST_QUEUES) >= MOST_QUEUES:
        yield (
            f'{RUN_QUEUE.name} names the queue "{key[1]}", but {MOST_QUEUES} queues of namespace '
            f'"{job.namespace}" have runs, which is the maximum: name one of them, or wait until runs end'
        )


def queue_warnings(db: ReadSnapshot, job: Job) -> Iterator[str]:
    """Yield warnings about the queues that a job names."""
    yield from _step_warnings(db, job)
    # For a parent, the name may contain meta of a dispatch, which is not known yet.
    if job.launches_children or not queue_of(job):
        return
    run_queue = queue_of_runs(job)
    key = (job.namespace, run_queue.name)
    if not concurrency.has_limit(db, key):
        yield (
            f'the queue "{run_queue.name}" has 1 slot; set another number with: '
            f"steward queues set -slots N {run_queue.name}"
        )
    limit = concurrency.limit(db, key)
    if run_queue.slots > limit:
        yield (
            f'a run of the job asks for {run_queue.slots} slots of the queue "{run_queue.name}", '
            f"and takes {_describe_all_slots(limit)}"
        )


def _describe_all_slots(limit: int) -> str:
    return "its only slot" if limit == 1 else f"all {limit}"


def _use_errors(db: ReadSnapshot, job: Job) -> Iterator[str]:
    for name, use in queues_used(job).items():
        key = (job.namespace, name)
        other_use = QueueUse.STEPS if use == QueueUse.RUNS else QueueUse.RUNS
        owner = concurrency.other_user(db, key, other_use, job.id)
        if owner is not None:
            field = RUN_QUEUE.name if use == QueueUse.RUNS else STEP_QUEUES.name
            yield (
                f'{field} names the queue "{name}", which {other_use} of job "{owner}" use; a queue is '
                "for runs or for steps: name another one"
            )
        elif use == QueueUse.STEPS and _is_too_many(db, key):
            yield (
                f'{STEP_QUEUES.name} names the queue "{name}", but jobs of namespace '
                f'"{job.namespace}" name {MOST_QUEUES} queues, which is the maximum: name one of '
                "them, or purge jobs"
            )


def _is_too_many(db: ReadSnapshot, key: Key) -> bool:
    """Return whether a queue is new although jobs already use the maximum number of queues."""
    if concurrency.is_used(db, key):
        return False
    return concurrency.used(db, key[0], MOST_QUEUES) >= MOST_QUEUES


def _step_warnings(db: ReadSnapshot, job: Job) -> Iterator[str]:
    warned = set[str]()
    for group in job.task_groups or ():
        slots = STEP_SLOTS.of(group.meta)
        for name in STEP_QUEUES.of(group.meta):
            key = (job.namespace, name)
            limit = concurrency.limit(db, key)
            if not concurrency.has_limit(db, key) and name not in warned:
                warned.add(name)
                yield (
                    f'the queue "{name}" has 1 slot; set another number with: '
                    f"steward queues set -slots N {name}"
                )
            if slots > limit:
                yield (
                    f"an element of task group {group.name} asks for {slots} slots of the queue "
                    f'"{name}", and takes {_describe_all_slots(limit)}'
                )
