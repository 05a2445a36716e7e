"""Outputs that a person writes for a step, in the request that accepts the step.

The same rules apply to these outputs and to outputs that tasks write.
"""

from collections.abc import Mapping

import msgspec

from daemon.flow import lists, outputs
from daemon.flow.graph import Step
from daemon.jobspec.steward_meta.step_values import MAX_OUTPUTS, is_output_name
from storage.errors import Malformed
from storage.queries import runs
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.flow import FlowRun, RunStep
from storage.records.job import Job
from storage.writer import Transaction

BY_HAND = ""  # key of these outputs instead of a task's name
_SHOWN = 40  # characters of an invalid name


class WrittenOutputs(msgspec.Struct, frozen=True):
    """The outputs of an element after its step was accepted, by task.

    `alloc_id` is the ID of the allocation whose tasks wrote outputs. It is empty if the tasks of
    the element wrote none.
    """

    step: str
    element: int
    alloc_id: str
    by_task: dict[str, dict[str, str]]


def checked(
    db: ReadSnapshot,
    job: Job,
    run: FlowRun,
    step: Step,
    row: RunStep,
    new_outputs: Mapping[str, str],
    element: int | None,
) -> WrittenOutputs:
    """Check `new_outputs`, and return them merged with the stored outputs of an element.

    `row` is the state of `step` in the run. A new output replaces a stored output of the same name.
    Raises `Malformed`.
    """
    index = _element(job, row, element)
    _check_texts(new_outputs)
    alloc_id, stored, own = runs.stored_outputs(db, run, row.name, index)
    by_task = {
        task: {name: text for name, text in written.items() if name not in new_outputs}
        for task, written in stored.items()
    }
    by_task[BY_HAND] = {**by_task.get(BY_HAND, {}), **new_outputs}
    names = {name for written in by_task.values() for name in written}
    if missing := [name for name in step.outputs if name not in names]:
        raise Malformed(
            f"Outputs must also contain {', '.join(missing[:5])}, as steward_outputs of step "
            f"{row.name} requires"
        )
    of_step, of_run = runs.output_bytes(db, run, row.name)
    size = sum(len(encode(written)) for written in by_task.values())
    for limit, others, scope in (
        (outputs.MAX_FILE, 0, "an allocation"),
        (outputs.MAX_STEP, of_step - own, "a step"),
        (outputs.MAX_RUN, of_run - own, "a run"),
    ):
        if others + size > limit:
            raise Malformed(
                f"with Outputs, {row.name} exceeds the maximum of {limit} bytes for {scope}"
            )
    return WrittenOutputs(row.name, index, alloc_id, by_task)


def store(tx: Transaction, run: FlowRun, written: WrittenOutputs) -> None:
    """Store the outputs of an element."""
    runs.put_outputs(tx, run, written.step, written.element, written.alloc_id, written.by_task)


def _element(job: Job, row: RunStep, element: int | None) -> int:
    """Return the index of the element that gets the outputs. Raises `Malformed`."""
    group = lists.resolved_group(job, row.name)
    is_list = group is not None and lists.is_array(group)
    if element is None and is_list:
        raise Malformed(
            f"step {row.name} has {row.total} elements: Element must be the index of the element "
            "that gets the Outputs"
        )
    index = element or 0
    if index >= row.total:
        last = f"its last element is {row.total - 1}" if row.total else "it has no elements"
        raise Malformed(f"step {row.name} has no element {index}; {last}")
    return index


def _check_texts(new_outputs: Mapping[str, str]) -> None:
    """Raise `Malformed` if an output has an invalid name or text."""
    if len(new_outputs) > MAX_OUTPUTS:
        raise Malformed(f"Outputs has {len(new_outputs)} names; the maximum is {MAX_OUTPUTS}")
    for name, text in new_outputs.items():
        if not is_output_name(name):
            raise Malformed(
                f"Outputs contains the invalid name {name[:_SHOWN]!r}; a name consists of letters, "
                "digits and _, and does not begin with a digit"
            )
        if "\0" in text:
            raise Malformed(f"the output {name} contains a null character: remove it")
