"""The elements of a step in a run, as the API shows them."""

from collections.abc import Iterator, Sequence

import msgspec

from daemon.evals.failures import of_allocation
from daemon.flow import lists, outputs
from daemon.jobs.steer_run import RERUN
from storage.queries import allocations, jobs, runs
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation, ClientStatus, DesiredStatus
from storage.records.flow import FlowRun, RunElement, RunStep, StepState
from storage.records.group import TaskGroup
from storage.records.job import Job

_AT_ONCE = 250  # elements whose allocations one query reads


def elements(
    db: ReadSnapshot, run: FlowRun, step: RunStep, first: int, *, reverse: bool = False
) -> Iterator[RunElement]:
    """Yield the elements of a step from the index `first` on, in ascending or descending order.

    In descending order, an index beyond the end stands for the last element. The allocations are
    read in parts, so a caller may stop early. Call this function in a thread.
    """
    job = jobs.version(db, run.namespace, run.job_id, run.version)
    group = lists.resolved_group(job, step.name) if job is not None else None
    order = range(min(first, step.total - 1), -1, -1) if reverse else range(first, step.total)
    if not order:
        return
    text = _list_text(db, run, job, group) if job is not None and group is not None else ""
    for start in range(0, len(order), _AT_ONCE):
        indexes = order[start : start + _AT_ONCE]
        placed = _placed(db, run, step, indexes)
        items = _items(group, indexes, text)
        for index in indexes:
            allocs = placed.get(index, _Placed())
            list_item = items.get(index)
            element = _element(db, step, index, allocs)
            if list_item is not None:
                element = msgspec.structs.replace(element, key=list_item.key, value=list_item.text)
            yield element


# --- items ---


def _list_text(db: ReadSnapshot, run: FlowRun, job: Job, group: TaskGroup) -> str:
    """Return the output that a step uses as its list; empty if its list is not an output."""
    reference = lists.source(group)
    if reference is None:
        return ""
    source = lists.resolved_group(job, reference.step)
    row = runs.step(db, run, reference.step)
    return outputs.value(
        reference,
        runs.outputs(db, run, reference.step),
        total=row.total if row is not None else 0,
        is_list=source is not None and lists.is_array(source),
    )


def _items(group: TaskGroup | None, indexes: Sequence[int], text: str) -> dict[int, lists.Item]:
    """Return the items of elements by index; empty if there is no list, or no readable list."""
    if group is None or not lists.has_list(group):
        return {}
    try:
        return dict(zip(indexes, lists.items(group, indexes, text), strict=True))
    except lists.Faulty:  # the step failed because of its list, or its list is not known yet
        return {}


# --- states ---


class _Placed(msgspec.Struct, frozen=True):
    """The newest allocation of an element, and how often the element was set aside for a re-run."""

    newest: Allocation | None = None
    reruns: int = 0


def _placed(
    db: ReadSnapshot, run: FlowRun, step: RunStep, indexes: Sequence[int]
) -> dict[int, _Placed]:
    stem = f"{run.job_id}.{step.name}"
    placed = dict[int, _Placed]()
    for alloc in allocations.of_elements(db, run, (f"{stem}[{index}]" for index in indexes)):
        before = placed.get(alloc.index, _Placed())
        is_aside = alloc.desired_status == DesiredStatus.STOP and alloc.desired.description == RERUN
        placed[alloc.index] = (
            _Placed(None, before.reruns + 1) if is_aside else _Placed(alloc, before.reruns)
        )
    return placed


def _element(db: ReadSnapshot, step: RunStep, index: int, placed: _Placed) -> RunElement:
    alloc = placed.newest
    if alloc is None:
        state = _state_without_allocation(step)
        return RunElement(index=index, state=state, attempt=step.attempt)
    state, error = _state(step, alloc), None
    if state == StepState.FAILED:
        error = of_allocation(db, alloc)
    is_current = 0 < step.opened <= alloc.create_time
    attempt = step.attempt if is_current else min(placed.reruns + 1, step.attempt)
    return RunElement(
        index=index,
        state=state,
        attempt=attempt,
        exit_code=error.exit_code if error is not None else 0,
        alloc_id=alloc.id,
    )


def _state(step: RunStep, alloc: Allocation) -> StepState:
    if alloc.client_status == ClientStatus.PENDING:
        return StepState.OPEN
    if not alloc.client_terminal:
        return StepState.RUNNING
    if alloc.has_failed:
        return StepState.OPEN if _is_retried(step, alloc) else StepState.FAILED
    if alloc.desired_status == DesiredStatus.RUN:
        return StepState.SUCCEEDED
    # Steward or a person has stopped its tasks.
    return StepState.OPEN if step.outcome is None else StepState.CANCELED


def _is_retried(step: RunStep, alloc: Allocation) -> bool:
    return step.outcome is None and bool(alloc.desired.followup_eval_id)


def _state_without_allocation(step: RunStep) -> StepState:
    """Return the state of an element that has not begun, or whose allocation was deleted."""
    if step.state in (StepState.OPEN, StepState.RUNNING):
        return StepState.WAITING
    if step.outcome is None or step.state in (StepState.SKIPPED, StepState.CANCELED):
        return step.state
    if step.good == step.total:  # copied from another run, or its allocation was deleted
        return StepState.SUCCEEDED
    return StepState.SKIPPED  # the step ended without this element
