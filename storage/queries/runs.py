"""Runs of workflows, and their steps."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import msgspec

from storage.loop_share import spend
from storage.queries import events
from storage.queries.documents import decode_row
from storage.queries.pages import PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.flow import (
    AFTER,
    RUN_QUEUE,
    SLOTS_FREE,
    SLOTS_TABLE,
    STEP_QUEUES,
    STOPPED_REASON,
    FlowRun,
    FlowStatus,
    Outcome,
    RunAct,
    RunActType,
    RunStep,
    StepOutputs,
    StepState,
    queues_used,
    slots_topic,
)
from storage.records.job import Job
from storage.writer import Transaction

TABLE = "runs"


def topic(namespace: str, job_id: str) -> str:
    """Return the topic of changes to the runs of a job."""
    return f"runs/{namespace}/{job_id}"


# --- runs ---

_COLUMNS = """
    namespace, job_id, job_id AS id, number, version, status, reason, triggered_by, attempt, began,
    ended, cleans_up, deadline, only_step, only_element, outputs_of, create_index, modify_index
"""
_NEWEST = f"""
    SELECT {_COLUMNS} FROM runs
     WHERE namespace = :namespace AND job_id = :job_id
  ORDER BY number DESC
     LIMIT 1
"""
_FIND = f"""
    SELECT {_COLUMNS} FROM runs
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
"""
_OF_JOB = f"""
    SELECT {_COLUMNS} FROM runs
     WHERE namespace = :namespace AND job_id = :job_id AND number <= :before
  ORDER BY number DESC
     LIMIT :most
"""
_UNFINISHED = """
    SELECT 1 FROM runs
     WHERE namespace = :namespace AND job_id = :job_id AND status IN ('running', 'stopping')
"""
_PAGE = f"SELECT {_COLUMNS} FROM runs INDEXED BY runs_in_order"


def _run(row: sqlite3.Row) -> FlowRun:
    return FlowRun(
        namespace=row["namespace"],
        job_id=row["job_id"],
        number=row["number"],
        version=row["version"],
        status=FlowStatus(row["status"]),
        reason=row["reason"],
        trigger=row["triggered_by"],
        attempt=row["attempt"],
        began=row["began"],
        ended=row["ended"],
        cleans_up=bool(row["cleans_up"]),
        deadline=row["deadline"],
        only_step=row["only_step"],
        only_element=row["only_element"],
        outputs_of=row["outputs_of"],
        create_index=row["create_index"],
        modify_index=row["modify_index"],
    )


def newest(db: ReadSnapshot, namespace: str, job_id: str) -> FlowRun | None:
    """Return the newest run of a job; None if it has none."""
    row = db.one(_NEWEST, {"namespace": namespace, "job_id": job_id})
    return _run(row) if row else None


def find(db: ReadSnapshot, namespace: str, job_id: str, number: int) -> FlowRun | None:
    """Return a run by its number; None if it does not exist."""
    row = db.one(_FIND, {"namespace": namespace, "job_id": job_id, "number": number})
    return _run(row) if row else None


def of_job(
    db: ReadSnapshot, namespace: str, job_id: str, most: int, before: int = 2**62
) -> list[FlowRun]:
    """Return up to `most` runs of a job whose number is at most `before`, newest first."""
    parameters = {"namespace": namespace, "job_id": job_id, "most": most, "before": before}
    return [_run(row) for row in db.all(_OF_JOB, parameters)]


def is_unfinished(db: ReadSnapshot, namespace: str, job_id: str) -> bool:
    """Return whether a run of a job has not ended."""
    return db.one(_UNFINISHED, {"namespace": namespace, "job_id": job_id}) is not None


def page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[FlowRun]:
    """Yield runs in the order of their creation."""
    for row in _in_order(db, page_request):
        yield _run(row)


def _in_order(db: ReadSnapshot, page_request: PageRequest) -> Iterator[sqlite3.Row]:
    conditions, values = list(page_request.conditions), dict(page_request.values)
    if page_request.namespace != "*":
        conditions.append("+namespace = :namespace")
        values["namespace"] = page_request.namespace
    if page_request.start is not None:
        sign = "<=" if page_request.reverse else ">="
        conditions.append(f"(create_index, job_id) {sign} (:first, :second)")
        values["first"], values["second"] = page_request.start
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    direction = " DESC" if page_request.reverse else ""
    return db.each(f"{_PAGE}{where} ORDER BY create_index{direction}, job_id{direction}", values)


_PUT = """
    INSERT INTO runs (namespace, job_id, number, version, status, reason, triggered_by, attempt,
                      began, ended, cleans_up, deadline, only_step, only_element, outputs_of,
                      create_index, modify_index)
    VALUES (:namespace, :job_id, :number, :version, :status, :reason, :trigger, :attempt,
            :began, :ended, :cleans_up, :deadline, :only_step, :only_element, :outputs_of,
            :index, :index)
    ON CONFLICT (namespace, job_id, number) DO UPDATE
       SET status = excluded.status, reason = excluded.reason, attempt = excluded.attempt,
           ended = excluded.ended, cleans_up = excluded.cleans_up,
           deadline = excluded.deadline,
           modify_index = excluded.modify_index
"""
_OLD = """
    DELETE FROM runs
     WHERE namespace = :namespace AND job_id = :job_id AND number <= :number
       AND status NOT IN ('running', 'stopping')
"""


def put(tx: Transaction, run: FlowRun, before: FlowRun | None) -> None:
    """Store a run; `before` is the stored run, None for a new run.

    If a job with the same ID was purged, the attempt numbers continue after those of the purged
    job. If a number were repeated, the followers of the job would ignore the end of the run. A job
    may become a follower while the run is active, so the number is set again when the run ends.
    """
    ends = run.status.has_ended and (before is None or not before.status.has_ended)
    if before is None or ends:
        attempt = _unused_attempt(tx, run)
        run = msgspec.structs.replace(run, attempt=attempt)
    values = {**msgspec.structs.asdict(run), "index": tx.index}
    tx.execute(_PUT, values)
    touch(tx, run.namespace, run.job_id)
    if before is None:
        _publish_run(tx, "RunBegan", run)
    elif ends:
        _publish_run(tx, "RunEnded", run)
    if ends:
        _note_end(tx, run)
        _leave(tx, run)


def _unused_attempt(tx: Transaction, run: FlowRun) -> int:
    parent_id = _parent(tx, run)
    if not has_followers(tx, run.namespace, run.job_id, parent_id):
        return run.attempt
    from storage.queries import triggers  # imported late: few jobs follow others

    last_attempt = triggers.last_attempt(tx, run.namespace, run.job_id, parent_id, run.number)
    return max(run.attempt, 1 + last_attempt)


def _parent(tx: Transaction, run: FlowRun) -> str:
    job = tx.one(_PARENT, {"namespace": run.namespace, "job_id": run.job_id})
    return str(job["parent_id"]) if job else ""


def _note_end(tx: Transaction, run: FlowRun) -> None:
    """Record the end of a run for the jobs that follow its job."""
    parent_id = _parent(tx, run)
    if not has_followers(tx, run.namespace, run.job_id, parent_id):
        return
    from storage.queries import triggers  # imported late: few jobs follow others

    ended = triggers.EndedRun(
        namespace=run.namespace,
        job_id=run.job_id,
        parent_id=parent_id,
        number=run.number,
        version=run.version,
        attempt=run.attempt,
        status=run.status,
        ended=run.ended,
        index=tx.index,
    )
    triggers.note_end(tx, ended)


def note_stop(tx: Transaction, job: Job) -> None:
    """Cancel the active run of a job that is being stopped. No clean-up steps run.

    A later version may start the job again before the scheduler has processed the stop. If the run
    were still active then, it would continue, or the new run would take over its results.
    """
    run = newest(tx, job.namespace, job.id)
    if run is None or run.status.has_ended:
        return
    reason = "" if run.is_superseded else run.reason
    stopping = msgspec.structs.replace(run, reason=reason).stopping(STOPPED_REASON, cleans_up=False)
    if stopping != run:
        put(tx, stopping, run)


def touch(tx: Transaction, namespace: str, job_id: str) -> None:
    """Publish that a run of a job has changed."""
    tx.touch(TABLE, topic(namespace, job_id))


def remove_up_to(tx: Transaction, namespace: str, job_id: str, number: int) -> int:
    """Delete a job's ended runs up to a number, with their steps; return how many were deleted."""
    return tx.execute(_OLD, {"namespace": namespace, "job_id": job_id, "number": number})


def _publish_run(tx: Transaction, kind: str, run: FlowRun) -> None:
    stored = msgspec.structs.replace(run, modify_index=tx.index)
    events.add(
        tx,
        "Run",
        kind,
        namespace=run.namespace,
        key=f"{run.job_id}/{run.number}",
        filter_keys=(run.job_id,),
        payload=f'{{"Run":{encode(stored).decode()}}}',
    )


# --- steps ---

_STEPS = """
    SELECT step, state, reason, outcome, attempt, since, opened, total, good, failed, exit_code
      FROM run_steps
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
  ORDER BY place
"""
_EVERY_STEP = """
    SELECT json_group_array(json_object(
               'Name', step, 'State', state, 'Reason', reason, 'Outcome', outcome,
               'Attempt', attempt, 'Since', since, 'Opened', opened, 'Total', total,
               'Good', good, 'Failed', failed, 'ExitCode', exit_code)) AS steps
      FROM (SELECT * FROM run_steps
             WHERE namespace = :namespace AND job_id = :job_id AND number = :number
          ORDER BY place)
"""
_ONE_STEP = """
    SELECT step, state, reason, outcome, attempt, since, opened, total, good, failed, exit_code
      FROM run_steps
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number AND step = :step
"""
_PUT_STEP = """
    INSERT INTO run_steps (namespace, job_id, number, step, place, state, reason, outcome, attempt,
                           since, opened, total, good, failed, exit_code, modify_index)
    VALUES (:namespace, :job_id, :number, :name, :place, :state, :reason, :outcome, :attempt,
            :since, :opened, :total, :good, :failed, :exit_code, :index)
    ON CONFLICT (namespace, job_id, number, step) DO UPDATE
       SET state = excluded.state, reason = excluded.reason, outcome = excluded.outcome,
           attempt = excluded.attempt, since = excluded.since, opened = excluded.opened,
           total = excluded.total, good = excluded.good, failed = excluded.failed,
           exit_code = excluded.exit_code, modify_index = excluded.modify_index
"""
_STEP = 7  # units of work of one step
_DECODE_STEPS = msgspec.json.Decoder(list[RunStep]).decode
_TOLD = {StepState.OPEN: "StepOpened", StepState.HELD: "StepHeld"}


def steps(db: ReadSnapshot, run: FlowRun) -> list[RunStep]:
    """Return the steps of a run in the order of the job's definition.

    The query returns all steps as one JSON text. Decoding it is faster than reading a thousand
    rows.
    """
    key = _key(run)
    row = db.one(_EVERY_STEP, key)
    if row is not None:
        with suppress(msgspec.DecodeError, UnicodeError):  # a damaged row: read them one by one
            return _DECODE_STEPS(row["steps"])
    return [_step(row) for row in db.all(_STEPS, key)]


def _step(row: sqlite3.Row) -> RunStep:
    spend(_STEP)
    return RunStep(
        name=row["step"],
        state=StepState(row["state"]),
        reason=row["reason"],
        outcome=Outcome(row["outcome"]) if row["outcome"] else None,
        attempt=row["attempt"],
        since=row["since"],
        opened=row["opened"],
        total=row["total"],
        good=row["good"],
        failed=row["failed"],
        exit_code=row["exit_code"],
    )


def step(db: ReadSnapshot, run: FlowRun, name: str) -> RunStep | None:
    """Return a step of a run; None if the run has no step with this name."""
    row = db.one(_ONE_STEP, {**_key(run), "step": name})
    return _step(row) if row else None


def put_steps(
    tx: Transaction,
    run: FlowRun,
    changed: Iterable[RunStep],
    before: Mapping[str, RunStep],
    positions: Mapping[str, int],
) -> None:
    """Store changed steps of a run. If a step has ended or waits again, its slots become free.

    The keys of `before` and `positions` are step names. `before` has the stored steps, and
    `positions` the positions of the steps in the job.
    """
    has_slots = tx.one(_HAS_STEP_SLOTS, _key(run)) is not None
    for run_step in changed:
        if has_slots and run_step.state not in (StepState.HELD, StepState.OPEN):
            free_slots(tx, run, run_step.name)
        values = msgspec.structs.asdict(run_step)
        tx.execute(
            _PUT_STEP,
            {
                **values,
                "namespace": run.namespace,
                "job_id": run.job_id,
                "number": run.number,
                "place": positions.get(run_step.name, 0),
                "index": tx.index,
            },
        )
        earlier = before.get(run_step.name)
        if earlier is None or earlier.state != run_step.state:
            _publish_step(tx, run, run_step)
    touch(tx, run.namespace, run.job_id)


def _publish_step(tx: Transaction, run: FlowRun, step: RunStep) -> None:
    kind = "StepEnded" if step.outcome is not None else _TOLD.get(step.state)
    if kind is None:  # it waits, as before
        return
    shown = msgspec.structs.replace(step, opened=max(step.opened, 0))
    events.add(
        tx,
        "Step",
        kind,
        namespace=run.namespace,
        key=f"{run.job_id}/{run.number}/{step.name}",
        filter_keys=(run.job_id,),
        payload=f'{{"Step":{encode(shown).decode()}}}',
    )


# --- operations ---

_ACTS = """
    SELECT namespace, job_id, number, place, act, steps, attempt, who, note, time FROM run_acts
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
  ORDER BY place
"""
_ADD_ACT = """
    INSERT INTO run_acts (namespace, job_id, number, place, act, steps, attempt, who, note, time,
                          token, answer)
    SELECT :namespace, :job_id, :number, coalesce(max(place), 0) + 1, :act, :steps, :attempt, :who,
           :note, :time, :token, :answer
      FROM run_acts
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
"""


def acts(db: ReadSnapshot, run: FlowRun) -> list[RunAct]:
    """Return the operations on a run, oldest first."""
    key = _key(run)
    return [_act(row) for row in db.all(_ACTS, key)]


def _act(row: sqlite3.Row) -> RunAct:
    return RunAct(
        act=RunActType(row["act"]),
        steps=decode_row(row, list[str], "run_acts", "steps"),
        attempt=row["attempt"],
        who=row["who"],
        note=row["note"],
        time=row["time"],
    )


_ACTORS = """
    SELECT DISTINCT who FROM run_acts
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number AND act = :act
"""


def actors(db: ReadSnapshot, run: FlowRun, act: RunActType) -> frozenset[str]:
    """Return the people that carried out operations of this type on a run."""
    return frozenset(row["who"] for row in db.all(_ACTORS, {**_key(run), "act": act}))


_ANSWER = """
    SELECT namespace, job_id, number, place, act, steps, attempt, who, note, time, answer
      FROM run_acts
     WHERE namespace = :namespace AND job_id = :job_id AND token = :token AND token <> ''
"""


def answer_of(
    db: ReadSnapshot, namespace: str, job_id: str, token: str
) -> tuple[RunAct, bytes] | None:
    """Return the operation that has an idempotency token, and its response; None if unknown."""
    row = db.one(_ANSWER, {"namespace": namespace, "job_id": job_id, "token": token})
    return (_act(row), row["answer"].encode()) if row else None


def add_act(
    tx: Transaction, run: FlowRun, act: RunAct, *, token: str = "", answer: bytes = b""
) -> None:
    """Store an operation on a run; with an idempotency token, also its response."""
    values = {**msgspec.structs.asdict(act), "steps": encode(act.steps).decode()}
    key = _key(run)
    repeated = {"token": token, "answer": answer.decode() if token else ""}
    tx.execute(_ADD_ACT, {**key, **values, **repeated})
    touch(tx, run.namespace, run.job_id)
    events.add(
        tx,
        "Step" if act.attempt else "Run",
        "StepActed" if act.attempt else "RunActed",
        namespace=run.namespace,
        key=f"{run.job_id}/{run.number}",
        filter_keys=(run.job_id,),
        payload=f'{{"Act":{encode(act).decode()}}}',
    )


_HAS_APPROVED = """
    SELECT 1 FROM run_acts
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
       AND act = 'approve' AND steps = json_array(:step) AND attempt = :attempt AND who = :who
"""
_APPROVALS = """
    SELECT s.step, count(DISTINCT a.who) AS number
      FROM run_steps s
      JOIN run_acts a ON a.namespace = s.namespace AND a.job_id = s.job_id
                     AND a.number = s.number AND a.attempt = s.attempt
                     AND a.act = 'approve' AND a.steps = json_array(s.step)
     WHERE s.namespace = :namespace AND s.job_id = :job_id AND s.number = :number
       AND s.outcome IS NULL
  GROUP BY s.step
"""


def approvals(db: ReadSnapshot, run: FlowRun) -> dict[str, int]:
    """Return the number of people that approved the current attempt, by step."""
    key = _key(run)
    return {row["step"]: row["number"] for row in db.all(_APPROVALS, key)}


def has_approved(db: ReadSnapshot, run: FlowRun, step: RunStep, caller: str) -> bool:
    """Return whether a person has approved the current attempt of a step."""
    key = _key(run)
    return (
        db.one(_HAS_APPROVED, {**key, "step": step.name, "attempt": step.attempt, "who": caller})
        is not None
    )


# --- outputs ---

_OF_VERSION = f"""
    SELECT {_COLUMNS} FROM runs
     WHERE namespace = :namespace AND job_id = :job_id AND version = :version
  ORDER BY number DESC
     LIMIT 1
"""
_OUTPUTS = """
    SELECT namespace, job_id, number, step, element, alloc_id, outputs FROM run_outputs
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
       AND (:step = '' OR step = :step)
  ORDER BY step, element
"""
_HAS_OUTPUTS = """
    SELECT 1 FROM run_outputs
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
     LIMIT 1
"""
_OUTPUTS_OF_ELEMENT = """
    SELECT namespace, job_id, number, step, element, alloc_id, outputs, size FROM run_outputs
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
       AND step = :step AND element = :element
"""
_PUT_OUTPUTS = """
    INSERT INTO run_outputs (namespace, job_id, number, step, element, alloc_id, outputs, size)
    VALUES (:namespace, :job_id, :number, :step, :element, :alloc_id, :outputs, :size)
    ON CONFLICT (namespace, job_id, number, step, element) DO UPDATE
       SET alloc_id = excluded.alloc_id, outputs = excluded.outputs, size = excluded.size
"""
_REMOVE_OUTPUTS = """
    DELETE FROM run_outputs
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
       AND step = :step AND element = :element
"""
_REMOVE_OUTPUTS_OF_STEP = """
    DELETE FROM run_outputs
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number AND step = :step
"""
_NO_OUTPUT_BYTES = """
    UPDATE run_steps SET output_bytes = 0
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number AND step = :step
"""
_COUNT_OUTPUTS = """
    UPDATE run_steps SET output_bytes = output_bytes + :more
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number AND step = :step
"""
_COPY_OUTPUTS = """
    INSERT INTO run_outputs (namespace, job_id, number, step, element, alloc_id, outputs, size)
    SELECT namespace, job_id, :number, step, element, alloc_id, outputs, size FROM run_outputs
     WHERE namespace = :namespace AND job_id = :job_id AND number = :source AND step = :step
       AND element IS NOT :without
       AND element < (SELECT total FROM run_steps
                       WHERE namespace = :namespace AND job_id = :job_id AND number = :number
                         AND step = :step)
"""
_COPY_OUTPUT_BYTES = """
    UPDATE run_steps
       SET output_bytes = (SELECT coalesce(sum(size), 0) FROM run_outputs
                            WHERE namespace = :namespace AND job_id = :job_id
                              AND number = :number AND step = :step)
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number AND step = :step
"""
_OUTPUT_BYTES = """
    SELECT coalesce(sum(output_bytes), 0) AS run,
           coalesce(sum(output_bytes) FILTER (WHERE step = :step), 0) AS step
      FROM run_steps
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
"""


def of_version(db: ReadSnapshot, namespace: str, job_id: str, version: int) -> FlowRun | None:
    """Return the newest run of a version of a job; None if it has none."""
    row = db.one(_OF_VERSION, {"namespace": namespace, "job_id": job_id, "version": version})
    return _run(row) if row else None


def outputs(db: ReadSnapshot, run: FlowRun, step: str = "") -> Iterator[StepOutputs]:
    """Yield the outputs of a run, or only those of `step` if given, by step and element."""
    for row in db.each(_OUTPUTS, {**_key(run), "step": step}):
        yield _outputs(row)


def has_outputs(db: ReadSnapshot, run: FlowRun) -> bool:
    """Return whether the store has outputs of any element of a run."""
    return db.one(_HAS_OUTPUTS, _key(run)) is not None


def element_outputs(
    db: ReadSnapshot, run: FlowRun, step: str, element: int, alloc_id: str
) -> tuple[dict[str, dict[str, str]], int]:
    """Return the stored outputs of an element by task, and their size in bytes.

    If an allocation other than `alloc_id` wrote the outputs, the result contains only their size.
    """
    row = db.one(_OUTPUTS_OF_ELEMENT, {**_key(run), "step": step, "element": element})
    if row is None:
        return {}, 0
    return _by_task(row) if row["alloc_id"] == alloc_id else {}, int(row["size"])


def stored_outputs(
    db: ReadSnapshot, run: FlowRun, step: str, element: int
) -> tuple[str, dict[str, dict[str, str]], int]:
    """Return the stored outputs of an element.

    The parts of the result are: the ID of the allocation that wrote the outputs, the outputs by
    task, and their size in bytes. The ID is empty if a person wrote the outputs, or if there are
    none.
    """
    row = db.one(_OUTPUTS_OF_ELEMENT, {**_key(run), "step": step, "element": element})
    return (row["alloc_id"], _by_task(row), int(row["size"])) if row else ("", {}, 0)


def output_bytes(db: ReadSnapshot, run: FlowRun, step: str) -> tuple[int, int]:
    """Return the size of all outputs of a step, and of its run, in bytes."""
    row = db.one(_OUTPUT_BYTES, {**_key(run), "step": step})
    return (row["step"], row["run"]) if row else (0, 0)


def put_outputs(
    tx: Transaction,
    run: FlowRun,
    step: str,
    element: int,
    alloc_id: str,
    by_task: Mapping[str, Mapping[str, str]],
    *,
    is_replaced: bool = False,
) -> None:
    """Store the outputs of tasks, and delete those of earlier allocations of the element.

    `is_replaced` means that a newer allocation has replaced this allocation. Stored outputs of
    another allocation then stay, and nothing is stored.
    """
    key = {**_key(run), "step": step, "element": element}
    before = tx.one(_OUTPUTS_OF_ELEMENT, key)
    is_same = before is not None and before["alloc_id"] == alloc_id
    if is_replaced and before is not None and not is_same:
        return
    outputs_before = _by_task(before) if before and is_same else {}
    after = {
        task: task_outputs
        for task, task_outputs in {**outputs_before, **by_task}.items()
        if task_outputs
    }
    if not after:
        _remove_outputs(tx, run, key, before)
    elif after != outputs_before:
        document = encode(after)
        values = {**key, "alloc_id": alloc_id, "outputs": document.decode(), "size": len(document)}
        tx.execute(_PUT_OUTPUTS, values)
        _count_outputs(tx, key, len(document) - (before["size"] if before else 0))
        touch(tx, run.namespace, run.job_id)


def copy_outputs(
    tx: Transaction,
    source: FlowRun,
    target: FlowRun,
    steps: Iterable[str],
    *,
    without: int | None = None,
) -> None:
    """Copy the outputs of steps to a newer run of the same job.

    The newer run must have these steps. The outputs of the element `without` are not copied.
    """
    for step in steps:
        values = {**_key(target), "step": step, "source": source.number, "without": without}
        tx.execute(_COPY_OUTPUTS, values)
        tx.execute(_COPY_OUTPUT_BYTES, values)


def remove_outputs(tx: Transaction, run: FlowRun, step: str, element: int) -> None:
    """Delete the outputs of an element."""
    key = {**_key(run), "step": step, "element": element}
    _remove_outputs(tx, run, key, tx.one(_OUTPUTS_OF_ELEMENT, key))


def remove_step_outputs(tx: Transaction, run: FlowRun, step: str) -> None:
    """Delete the outputs of all elements of a step."""
    key = {**_key(run), "step": step}
    if tx.execute(_REMOVE_OUTPUTS_OF_STEP, key):
        tx.execute(_NO_OUTPUT_BYTES, key)
        touch(tx, run.namespace, run.job_id)


def _remove_outputs(
    tx: Transaction, run: FlowRun, key: Mapping[str, object], before: sqlite3.Row | None
) -> None:
    if before is not None:
        tx.execute(_REMOVE_OUTPUTS, key)
        _count_outputs(tx, key, -before["size"])
        touch(tx, run.namespace, run.job_id)


def _count_outputs(tx: Transaction, key: Mapping[str, object], more: int) -> None:
    values = {name: value for name, value in key.items() if name != "element"}
    tx.execute(_COUNT_OUTPUTS, {**values, "more": more})


def _key(run: FlowRun) -> dict[str, object]:
    return {"namespace": run.namespace, "job_id": run.job_id, "number": run.number}


def _outputs(row: sqlite3.Row) -> StepOutputs:
    return StepOutputs(
        step=row["step"],
        element=row["element"],
        alloc_id=row["alloc_id"],
        outputs={name: text for texts in _by_task(row).values() for name, text in texts.items()},
    )


def _by_task(row: sqlite3.Row) -> dict[str, dict[str, str]]:
    return decode_row(row, dict[str, dict[str, str]], "run_outputs", "outputs")


# --- slots of queues ---

_HAS_STEP_SLOTS = """
    SELECT 1 FROM step_slots
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
     LIMIT 1
"""
_STEP_QUEUES = """
    SELECT name FROM step_slots
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number AND step = :step
"""
_FREE_STEP = """
    DELETE FROM step_slots
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number AND step = :step
"""
_USES_QUEUE = "SELECT 1 FROM queue_users WHERE namespace = :namespace AND job_id = :job_id LIMIT 1"
_FORGET_QUEUES = "DELETE FROM queue_users WHERE namespace = :namespace AND job_id = :job_id"
_USE_QUEUE = """
    INSERT INTO queue_users (namespace, job_id, name, kind)
    VALUES (:namespace, :job_id, :name, :kind)
"""

_SLOT = """
    SELECT name, state FROM queue_entries
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
"""
_HAS_OPENED = """
    SELECT 1 FROM run_steps
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number AND opened <> 0
     LIMIT 1
"""
_LEAVE_QUEUE = """
    DELETE FROM queue_entries
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
"""
_QUEUES_OF_JOB = """
    SELECT name FROM queue_entries WHERE namespace = :namespace AND job_id = :job_id
     UNION
    SELECT name FROM step_slots WHERE namespace = :namespace AND job_id = :job_id
"""
_ANY_CHANGED = "SELECT 1 FROM queues_changed LIMIT 1"
_QUEUE_CHANGED = """
    INSERT INTO queues_changed (namespace, name)
    SELECT :namespace, :name
     WHERE EXISTS (SELECT 1 FROM queue_entries INDEXED BY queue_entries_waiting
                    WHERE namespace = :namespace AND name = :name AND state = 'waiting')
        OR EXISTS (SELECT 1 FROM step_slots INDEXED BY step_slots_waiting
                    WHERE namespace = :namespace AND name = :name AND wanted > held)
    ON CONFLICT (namespace, name) DO NOTHING
"""


def slot(db: ReadSnapshot, run: FlowRun) -> tuple[str, bool] | None:
    """Return the queue of a run, and whether the run holds slots; None if the run has no queue."""
    row = db.one(_SLOT, _key(run))
    return (row["name"], row["state"] == "holding") if row else None


def has_opened(db: ReadSnapshot, namespace: str, job_id: str, number: int) -> bool:
    """Return whether a step of a run was opened."""
    key = {"namespace": namespace, "job_id": job_id, "number": number}
    return db.one(_HAS_OPENED, key) is not None


def any_queue_changed(db: ReadSnapshot) -> bool:
    """Return whether a queue that a run or a step waits in has changed since it was last served."""
    return db.one(_ANY_CHANGED) is not None


def queue_changed(tx: Transaction, namespace: str, name: str) -> None:
    """Publish a change of a queue. The scheduler then checks for free slots if anything waits."""
    tx.execute(_QUEUE_CHANGED, {"namespace": namespace, "name": name})
    tx.touch(SLOTS_TABLE, SLOTS_FREE, slots_topic(namespace, name))


def _leave(tx: Transaction, run: FlowRun) -> None:
    """Free the slots of a run that has ended."""
    slot_row = slot(tx, run)
    if slot_row is not None:
        tx.execute(_LEAVE_QUEUE, _key(run))
        queue_changed(tx, run.namespace, slot_row[0])


def queues_of_job(db: ReadSnapshot, namespace: str, job_id: str) -> list[str]:
    """Return the names of the queues in which a job has runs or steps."""
    rows = db.all(_QUEUES_OF_JOB, {"namespace": namespace, "job_id": job_id})
    return [row["name"] for row in rows]


def free_slots(tx: Transaction, run: FlowRun, step: str) -> None:
    """Free all slots of a step, and end its wait for slots."""
    key = {**_key(run), "step": step}
    names = [row["name"] for row in tx.all(_STEP_QUEUES, key)]
    if names:
        tx.execute(_FREE_STEP, key)
    for name in names:
        queue_changed(tx, run.namespace, name)


def sync_queues(tx: Transaction, job: Job) -> None:
    """Record which queues a new version of a job uses."""
    groups = job.task_groups or ()
    names_any = RUN_QUEUE in (job.meta or ()) or any(STEP_QUEUES in (g.meta or ()) for g in groups)
    key = {"namespace": job.namespace, "job_id": job.id}
    if not names_any and (not job.version or tx.one(_USES_QUEUE, key) is None):
        return
    tx.execute(_FORGET_QUEUES, key)
    for name, use in queues_used(job).items():
        tx.execute(_USE_QUEUE, {**key, "name": name, "kind": use})


# --- jobs that follow others ---

_PARENT = "SELECT parent_id FROM jobs WHERE namespace = :namespace AND id = :job_id"
_HAS_FOLLOWER = """
    SELECT 1 FROM job_sources
     WHERE source_namespace = :namespace AND source_id IN (:job_id, nullif(:parent_id, ''))
     LIMIT 1
"""
_FOLLOWS = "SELECT 1 FROM job_sources WHERE namespace = :namespace AND job_id = :job_id LIMIT 1"
_ANY_FOLLOWS = "SELECT 1 FROM job_sources LIMIT 1"


def has_followers(db: ReadSnapshot, namespace: str, job_id: str, parent_id: str) -> bool:
    """Return whether any job follows the given job or its parent."""
    key = {"namespace": namespace, "job_id": job_id, "parent_id": parent_id}
    return db.one(_HAS_FOLLOWER, key) is not None


def any_follows(db: ReadSnapshot) -> bool:
    """Return whether any job follows another job."""
    return db.one(_ANY_FOLLOWS) is not None


def sync_sources(tx: Transaction, job: Job) -> None:
    """Store the jobs that a new version of a job follows."""
    if job.parent_id:  # children inherit the meta of their parent, but not its role
        return
    key = {"namespace": job.namespace, "job_id": job.id}
    if AFTER in (job.meta or ()) or tx.one(_FOLLOWS, key) is not None:
        from storage.queries import triggers  # imported late: few jobs follow others

        triggers.sync_sources(tx, job)
