"""Give the slots of queues to the runs that wait for them.

A run enters its queue in the write that stores it, and leaves it in the write that ends it. Between,
this loop grants slots: by priority, then by arrival. The first run is never overtaken, so a run that
needs several slots gets them. A grant and the evaluation of its run are one write.
"""

from collections.abc import Iterator
from functools import partial

import msgspec

from daemon.clock import Clock, wait_until
from daemon.fences import TOPIC, Fences
from daemon.jobs.evaluate import new_evaluation
from daemon.jobspec.steward_meta import RUN_BEYOND, RUN_QUEUE, RUN_SLOTS, queue_of
from storage.queries import concurrency, evaluations, job_status, jobs, runs
from storage.queries.concurrency import Key
from storage.read_pool import ReadSnapshot
from storage.records.concurrency import MOST_QUEUES, QueueEntry, RunQueue, SlotState
from storage.records.evaluation import Trigger
from storage.records.flow import SLOTS_FREE, Beyond, FlowRun, FlowStatus
from storage.records.job import Job
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

_FENCED = "queue"
_AT_ONCE = 32  # runs that one write grants or cancels


def queue_of_runs(job: Job) -> RunQueue:
    """Return the queue that the runs of a job enter; the job names one."""
    return RunQueue(
        name=queue_of(job), slots=RUN_SLOTS.of(job.meta), beyond=RUN_BEYOND.of(job.meta)
    )


async def grant_slots(store: Store, clock: Clock, ids: Iterator[str], fences: Fences) -> None:
    """Grant slots whenever runs arrive, slots become free, or limits change."""
    while True:
        with store.watch(SLOTS_FREE, TOPIC) as change:
            held = fences.paused_keys(_FENCED)
            most = _AT_ONCE + len(held)
            ready = [
                key
                for key in store.read(partial(concurrency.changed, most=most))
                if "/".join(key) not in held
            ]
            if not ready:
                await wait_until(fences.next_time(_FENCED), clock, change)
                continue
        async with tolerate_disk_full("runs wait for slots"):
            for key in ready:
                with fences.around(_FENCED, "/".join(key)):
                    await store.write(partial(serve, key=key, now=clock.now(), ids=ids))


def has_work(db: ReadSnapshot, key: Key) -> bool:
    """Return whether a run may get slots now, or does not wait patiently."""
    head = next(iter(concurrency.waiters(db, key, 1)), None)
    if head is None:
        return False
    fits = _fits(head, concurrency.in_use(db, key), concurrency.limit(db, key))
    return fits or any(
        _acts(db, queue_entry) for queue_entry in concurrency.not_patient(db, key, _AT_ONCE)
    )


def _fits(entry: QueueEntry, in_use: int, limit: int) -> bool:
    """Return whether a run gets its slots; one that asks for more than all gets all."""
    return in_use + min(entry.slots, limit) <= limit


def _acts(db: ReadSnapshot, entry: QueueEntry) -> bool:
    """Return whether a run that finds no slot cancels itself or others, and has not yet."""
    return any(True for _ in _to_cancel(db, entry))


def _to_cancel(db: ReadSnapshot, entry: QueueEntry) -> Iterator[tuple[FlowRun, str, bool]]:
    """Yield the runs that a waiting run cancels, each with the reason, and whether it has begun."""
    found: list[QueueEntry] = []
    reason = f'run {entry.number} of {entry.job_id} took its place in the queue "{entry.name}"'
    match entry.beyond:
        case Beyond.QUEUE:
            return
        case Beyond.SKIP:
            found, reason = [entry], f'no slot of the queue "{entry.name}" was free'
        case Beyond.NEWEST:
            found = concurrency.of_family(db, entry, SlotState.WAITING, _AT_ONCE)
        case Beyond.CANCEL_OLDEST:
            found = concurrency.of_family(db, entry, SlotState.HOLDING, 1)
    for queue_entry in found:
        run = runs.find(db, queue_entry.namespace, queue_entry.job_id, queue_entry.number)
        if run is not None and run.status == FlowStatus.RUNNING:
            yield run, reason, queue_entry.state == SlotState.HOLDING


def serve(tx: Transaction, key: Key, now: int, ids: Iterator[str]) -> None:
    """Grant slots of a queue to the first runs; then apply what the others do without a slot."""
    limit, in_use = concurrency.limit(tx, key), concurrency.in_use(tx, key)
    for entry in concurrency.waiters(tx, key, _AT_ONCE):
        if not _fits(entry, in_use, limit):
            _cancel(tx, key, now, ids)
            break
        in_use += entry.slots
        concurrency.grant(tx, entry, now)
        _evaluate(tx, entry.namespace, entry.job_id, now, next(ids))
    if not has_work(tx, key):
        concurrency.served(tx, key)


def _cancel(tx: Transaction, key: Key, now: int, ids: Iterator[str]) -> None:
    """Apply what the runs do that wait although the first of them finds no slot."""
    for entry in concurrency.not_patient(tx, key, _AT_ONCE):
        for run, reason, has_begun in _to_cancel(tx, entry):
            # Steps for every end still run, as after a cancellation by a person.
            stopping = msgspec.structs.replace(
                run, status=FlowStatus.STOPPING, reason=reason, cleans_up=has_begun
            )
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
    """Yield an error if a job names another queue than those with runs, and these are too many."""
    key = (job.namespace, queue_of(job))
    if job.launches_children or concurrency.has_run(db, key):
        return  # the meta of a dispatch may be a part of the name
    if concurrency.with_runs(db, job.namespace, MOST_QUEUES) >= MOST_QUEUES:
        yield (
            f'{RUN_QUEUE.name} names the queue "{key[1]}", but {MOST_QUEUES} queues of namespace '
            f'"{job.namespace}" have runs, which is the most: name one of them, or wait until runs end'
        )


def queue_warnings(db: ReadSnapshot, job: Job) -> Iterator[str]:
    """Yield warnings about the queue that a job names."""
    if job.launches_children:  # the meta of a dispatch may be a part of the name
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
            f"and takes all {limit}"
        )
