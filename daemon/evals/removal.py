"""Delete evaluations while the scheduler is paused."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice

import msgspec

from daemon.evals.scheduler_config import configuration
from storage.errors import Malformed, NotFound, Refused
from storage.queries import evaluations, job_status
from storage.read_pool import ReadSnapshot
from storage.store import Store
from storage.writer import Transaction

_AT_ONCE = 500  # evaluations per write; more would block other writers
_MOST = 5000  # evaluations per request

Matches = Callable[[object], bool]


async def remove_evaluations(
    store: Store, ids: Sequence[str], matches: Matches | None
) -> tuple[int, int]:
    """Delete the evaluations in `ids`, or up to 5,000 evaluations for which `matches` is true.

    Return the number of deleted evaluations and the index of the write. With `matches`, evaluations
    with non-terminal allocations are skipped. Raises `Malformed`, `Refused` while the scheduler is
    not paused, and `NotFound` for an unknown ID.
    """
    if len(ids) > _MOST:
        raise Malformed(f"EvalIDs has {len(ids)} entries; the maximum is {_MOST}")
    chosen = await store.read_long(partial(_chosen, ids=ids, matches=matches))
    index = store.read(lambda db: db.table_index("evaluations"))
    removed = 0
    remaining = iter(chosen)
    while batch := list(islice(remaining, _AT_ONCE)):
        removed_count, index = await store.write(partial(_remove, ids=batch))
        removed += removed_count
    return removed, index


def _chosen(db: ReadSnapshot, *, ids: Sequence[str], matches: Matches | None) -> list[str]:
    _check_paused(db)
    if matches is not None:
        selected = (
            evaluation.id
            for evaluation in evaluations.removable(db)
            if matches(msgspec.to_builtins(evaluation))
        )
        return list(islice(selected, _MOST))
    free = {evaluation.id for evaluation in evaluations.removable(db, ids)}
    for identifier in ids:
        if identifier not in free:
            _explain(db, identifier)
    return list(dict.fromkeys(ids))


def _explain(db: ReadSnapshot, eval_id: str) -> None:
    if evaluations.find(db, eval_id) is None:
        raise NotFound("eval not found", index=db.table_index("evaluations"))
    raise Refused(f"evaluation {eval_id} has allocations that still run: stop the job first")


def _check_paused(db: ReadSnapshot) -> None:
    if not configuration(db).pause_eval_broker:
        raise Refused("eval broker is enabled; eval broker must be paused to delete evals")


def _remove(tx: Transaction, *, ids: Iterable[str]) -> tuple[int, int]:
    _check_paused(tx)
    removed = list(evaluations.removable(tx, list(ids)))
    evaluations.remove(tx, [evaluation.id for evaluation in removed])
    for namespace, job_id in {(evaluation.namespace, evaluation.job_id) for evaluation in removed}:
        job_status.refresh_summary(tx, namespace, job_id)
    return len(removed), tx.index
