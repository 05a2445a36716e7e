"""The data of a step of a workflow: results of earlier steps for its tasks, and its own outputs.

A task finds the results in `local/needs.json`, and the references to outputs in its definition are
replaced. It writes its outputs to the file in `STEWARD_OUTPUT`. The daemon reads this file once,
when the task has ended, and stores it with the state of the task. If the task ran on a host of a
cluster, that host has already sent the file.
"""

import hashlib

import msgspec
import trio

from daemon.flow import lists, outputs
from daemon.flow.graph import ALL, counterparts, predecessors, stored_graph
from daemon.flow.workflow_keys import is_workflow
from daemon.jobspec.steward_meta.step_keys import NEEDS, OUTPUTS
from daemon.jobspec.steward_meta.step_values import MAX_OUTPUTS, is_output_name
from daemon.launcher.messages import MOST_PAYLOAD
from daemon.runner.core.driver import ExitResult, TaskFile
from daemon.runner.core.lifecycle import hook
from daemon.runner.core.safe_open import PathEscape
from daemon.runner.core.status_report import AllocReport
from daemon.runner.core.task_dir import OUTPUT_FILE
from daemon.runner.core.task_env import pairs
from daemon.runner.core.task_files import TaskFiles
from daemon.runner.core.task_instance import TaskInstance
from storage.errors import Refused
from storage.loop_share import spend
from storage.queries import runs
from storage.read_pool import ReadSnapshot
from storage.records.allocation import TaskPhase
from storage.records.codec import encode
from storage.records.flow import FlowRun, RunStep, StepOutputs
from storage.store import Store

_OUTPUTS, _NEEDS = f"local/{OUTPUT_FILE}", "local/needs.json"
_READABLE = 0o644
_MOST_WITH_START = 16 * 1024  # bytes of `needs.json`
_SHORT = 1024  # characters of outputs that are parsed on the event loop


class StepData(msgspec.Struct, frozen=True):
    """The results of earlier steps.

    `values` has the text of each reference. `needs` is the content of `needs.json`, empty if the
    step needs nothing. `environment` has the variables for the list item of this element.
    """

    values: dict[str, str] = {}
    needs: bytes = b""
    environment: dict[str, str] = {}

    @property
    def is_short(self) -> bool:
        """Return whether the files are short enough to be sent inside the start request."""
        return len(self.needs) <= _MOST_WITH_START


class _Need(msgspec.Struct, frozen=True):
    """One earlier step, as `needs.json` describes it."""

    outcome: str
    state: str
    reason: str
    exit_code: int
    failed: int
    total: int
    outputs: dict[str, str | list[str | None]]


def is_independent(instance: TaskInstance) -> bool:
    """Return whether the step of an allocation uses no results of other steps."""
    return not NEEDS.of(instance.group.meta) and not lists.has_list(instance.group)


def load(db: ReadSnapshot, instance: TaskInstance) -> StepData:
    """Return the results of earlier steps for the tasks of an allocation. Raises `Refused`."""
    run = _run_of(db, instance)
    if run is None:
        return StepData()
    reader = _Reader(db, instance, run)
    group = lists.resolved_group(instance.job, instance.group.name) or instance.group
    try:
        values = {
            f"output.{reference}": reader.value(reference)
            for reference in outputs.references(group)
        }
        needs = {name: reader.need(name) for name in _needed_steps(instance)}
        source = lists.source(group)
        text = reader.value(source) if source else ""
    except outputs.TooManyValues as error:
        raise Refused(str(error)) from error
    document = encode(needs) if needs else b""
    if len(document) > MOST_PAYLOAD:
        raise Refused(f"needs.json has {len(document)} bytes; the maximum is {MOST_PAYLOAD}")
    if not lists.has_list(group):
        return StepData(values, document)
    index = instance.allocation.index
    try:
        list_item = lists.item(group, index, text)
    except lists.Faulty as error:
        raise Refused(f"the list of the step is invalid: {error}") from error
    return StepData(values | lists.values(list_item, index), document, lists.environment(list_item))


def read_output(db: ReadSnapshot, instance: TaskInstance, text: str) -> str:
    """Return an output of an earlier step: `STEP.NAME`, or `STEP[3].NAME` for one element.

    Raises `Refused` if the step of the task does not follow the named step.
    """
    reference = lists.reference_in(f"${{output.{text}}}")
    run = _run_of(db, instance)
    if reference is None or run is None or not is_workflow(instance.job):
        raise Refused(f"{text} is not an output of a step")
    steps = stored_graph(instance.job)
    if reference.step not in predecessors(steps, [instance.group.name]):
        raise Refused(f"{reference.step} is not a step before {instance.group.name}")
    try:
        return _Reader(db, instance, run).value(reference)
    except outputs.TooManyValues as error:
        raise Refused(str(error)) from error


def _run_of(db: ReadSnapshot, instance: TaskInstance) -> FlowRun | None:
    allocation = instance.allocation
    return runs.of_version(db, allocation.namespace, allocation.job_id, allocation.job_version)


def _needed_steps(instance: TaskInstance) -> tuple[str, ...]:
    needs = NEEDS.of(instance.group.meta)
    if needs != (ALL,):
        return tuple(need.removesuffix(lists.EACH) for need in needs)
    return stored_graph(instance.job).by_name[instance.group.name].needs


class _Reader:
    """Reads the stored steps of a run and their outputs, each only once.

    All lists together have a limited number of values, so that a thread needs little memory.
    """

    def __init__(self, db: ReadSnapshot, instance: TaskInstance, run: FlowRun) -> None:
        self._db, self._run = db, run
        self._groups = lists.resolved_groups(instance.job)
        self._index = max(instance.allocation.index, 0)
        self._own = frozenset[str]()  # steps in which only the element with the same index counts
        if lists.element_needs(instance.group):
            name = instance.group.name
            self._own = counterparts(stored_graph(instance.job), {name})[name]
        self._steps: dict[str, RunStep] = {}
        self._outputs: dict[str, list[StepOutputs]] = {}
        self._number = 0  # number of values of all lists so far

    def value(self, reference: lists.Reference) -> str:
        """Return the text of a reference. Raises `outputs.TooManyValues`."""
        if reference.element is None and reference.step in self._own:
            reference = lists.Reference(reference.step, reference.name, self._index)
        step = self._step(reference.step)
        if reference.element is None and self._is_array(reference.step):
            self._count(step.total)
        return outputs.value(
            reference,
            self._outputs_of(reference.step),
            total=step.total,
            is_list=self._is_array(reference.step),
        )

    def need(self, name: str) -> _Need:
        """Return the description of a step for `needs.json`. Raises `outputs.TooManyValues`."""
        step, is_list, written = self._step(name), self._is_array(name), self._outputs_of(name)
        if name in self._own:
            is_list, written = (
                False,
                [output for output in written if output.element == self._index],
            )
        values = outputs.by_name(written, total=step.total, is_list=is_list)
        if is_list:
            self._count(len(values) * step.total)
        return _Need(
            outcome=step.outcome or "",
            state=step.state,
            reason=step.reason,
            exit_code=step.exit_code,
            failed=step.failed,
            total=step.total,
            outputs=values,
        )

    def _count(self, values: int) -> None:
        spend(values)
        self._number += values
        outputs.check_number(self._number)

    def _is_array(self, name: str) -> bool:
        group = self._groups.get(name)
        return group is not None and lists.is_array(group)

    def _step(self, name: str) -> RunStep:
        if name not in self._steps:
            self._steps[name] = runs.step(self._db, self._run, name) or RunStep(name=name)
        return self._steps[name]

    def _outputs_of(self, name: str) -> list[StepOutputs]:
        if name not in self._outputs:
            self._outputs[name] = [*runs.outputs(self._db, self._run, name)]
        return self._outputs[name]


# --- outputs of a task ---


def files_of(files: TaskFiles, step_data: StepData) -> tuple[TaskFile, ...]:
    """Return the files to write before an attempt: `needs.json`, and an empty file for outputs.

    If the step needs nothing, there is no `needs.json`. Raises `PathEscape`.
    """
    own_outputs = TaskFile(path=files.own(_OUTPUTS), content=b"")
    if not step_data.needs:
        return (own_outputs,)
    own_needs = TaskFile(path=files.own(_NEEDS), content=step_data.needs, mode=_READABLE)
    return own_needs, own_outputs


async def prepare(files: TaskFiles, step_data: StepData) -> None:
    """Write the files of a task before an attempt. Raises `Refused` or `OSError`."""
    if step_data.needs:
        await files.write(files.own(_NEEDS), step_data.needs, mode=_READABLE)
    await files.write(files.own(_OUTPUTS), b"")


class _Stored(msgspec.Struct, frozen=True):
    """The stored outputs of an allocation by task.

    `of_step` is the number of bytes that the other elements of the step have stored. `of_run` is
    the number for all other elements of the run.
    """

    by_task: dict[str, dict[str, str]]
    of_step: int
    of_run: int


def _stored(db: ReadSnapshot, instance: TaskInstance) -> _Stored | None:
    run, allocation = _run_of(db, instance), instance.allocation
    if run is None:
        return None
    element = (allocation.task_group, max(allocation.index, 0))
    by_task, own = runs.element_outputs(db, run, *element, allocation.id)
    of_step, of_run = runs.output_bytes(db, run, allocation.task_group)
    return _Stored(by_task, of_step - own, of_run - own)


async def collect(
    store: Store,
    files: TaskFiles,
    instance: TaskInstance,
    report: AllocReport,
    end: ExitResult,
) -> str:
    """Add the outputs of a task that has ended to the report of its allocation.

    Return why a successful task counts as failed, or an empty string. Faulty outputs of a failed
    task are ignored.
    """
    try:
        text = await _content(files, end)
        is_long = len(text) > _SHORT
        parsed = await trio.to_thread.run_sync(_parsed, text) if is_long else _parsed(text)
        is_first = not report.states[files.task].restarts
        if is_first and not (parsed or OUTPUTS.of(instance.group.meta)):
            # There is nothing to check, and no outputs of an earlier attempt to replace.
            if end.ok:
                report.succeeded.add(files.task)
            return ""
        # There is no `await` from here on. So if two tasks end at the same time, the second one
        # sees the outputs of the first.
        stored = store.read(lambda db: _stored(db, instance))
        if stored is None:
            return ""
        of_other_tasks = {**stored.by_task, **report.outputs}
        of_other_tasks.pop(files.task, None)
        _check(parsed, of_other_tasks, stored, report.unstored_elsewhere())
        report.add_outputs(files.task, parsed)
        if end.ok:
            report.succeeded.add(files.task)
            _check_declared(instance, report, {**of_other_tasks, files.task: parsed})
    except Refused as error:
        report.add_outputs(files.task, {})
        return str(error)
    return ""


def _check(
    outputs_of_task: dict[str, str],
    outputs_of_others: dict[str, dict[str, str]],
    stored: _Stored,
    unstored: tuple[int, int],
) -> None:
    """Raise `Refused` if outputs repeat those of another task, or exceed a limit.

    `unstored` counts the bytes of outputs that other allocations have reported, but that are not
    stored yet: first for the step, then for the run.
    """
    for task, other_outputs in outputs_of_others.items():
        if repeated := sorted(outputs_of_task.keys() & other_outputs.keys()):
            raise Refused(f"task {task} has already written the output {repeated[0]}")
    size = len(encode(outputs_of_task))
    of_others = sum(len(encode(task_outputs)) for task_outputs in outputs_of_others.values())
    for limit, before, scope in (
        (outputs.MAX_FILE, of_others, "the allocation"),
        (outputs.MAX_STEP, of_others + stored.of_step + unstored[0], "the step"),
        (outputs.MAX_RUN, of_others + stored.of_run + unstored[1], "the run"),
    ):
        if outputs_of_task and before + size > limit:
            raise Refused(f"the outputs of {scope} exceed {limit} bytes")


def _check_declared(
    instance: TaskInstance, report: AllocReport, written: dict[str, dict[str, str]]
) -> None:
    """Raise `Refused` if a declared output is missing when the last main task has ended."""
    mains = [task.name for task in instance.tasks if not hook(task)]
    if any(
        task not in report.succeeded and report.states[task].state != TaskPhase.DEAD
        for task in mains
    ):
        return
    names = {name for task_outputs in written.values() for name in task_outputs}
    if missing := [name for name in OUTPUTS.of(instance.group.meta) if name not in names]:
        raise Refused(f"the step has not written its output {', '.join(missing[:5])}")


async def _content(files: TaskFiles, end: ExitResult) -> str:
    """Return the text that a task has written. Raises `Refused`."""
    delivered = end.delivered
    if delivered.fault:
        raise Refused(delivered.fault)
    try:
        content = end.outputs
        if content is None:
            content = await files.read(files.own(_OUTPUTS), outputs.MAX_FILE + 1)
    except FileNotFoundError:
        content = b""
    except (PathEscape, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Refused(f"the task's outputs cannot be read: {reason}") from error
    if len(content) > outputs.MAX_FILE:
        raise Refused(f"the task's outputs have more than {outputs.MAX_FILE} bytes")
    if delivered.outputs and delivered.outputs != hashlib.sha256(content).hexdigest():
        # After a power failure, the end of the task may be stored although the file is lost.
        raise Refused("the task's outputs have been lost since they arrived")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Refused("the task's outputs are not UTF-8") from None


def _parsed(text: str) -> dict[str, str]:
    """Return the outputs in a text. Raises `Refused`."""
    try:
        written_outputs = pairs(text, MAX_OUTPUTS)
    except ValueError as error:
        raise Refused(f"the task's outputs are invalid: {error}") from error
    for name in written_outputs:
        if not is_output_name(name):
            raise Refused(f"the name of output {name[:40]!r} must have only letters, digits and _")
    return written_outputs
