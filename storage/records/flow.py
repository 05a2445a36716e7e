"""Workflows: graphs of jobs, runs and their steps, and jobs that follow others."""

import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from storage.errors import Invalid
from storage.records.base import Record
from storage.records.job import Job


class GraphStep(Record, frozen=True, kw_only=True):
    """A step of a workflow: a group, with the groups that it needs.

    `level` counts from 0; the level of a step is higher than the levels of all steps that it needs.
    `condition` is the filter expression, or empty. `count` is the number of elements. At most
    `parallel` elements may be active at the same time; 0 means all. `elements_of` names the output
    that is the list of elements, such as `plan.shards`; then `count` is 0. `each_of` has the needs
    by element: an element of the step waits only for the element of the need that has the same
    index. An active element holds `slots` slots of each of the `queues`. The step begins only while
    the `calendar` is open; empty means no calendar. `gate` is the question that people answer
    before the step begins; empty means no gate. `approvals` is the number of people who must
    approve. `not_before` and `not_after` are the values of these keys in the job; a time of day
    includes its time zone.
    """

    name: str
    level: int
    needs: list[str]
    when: str
    condition: str
    count: int
    parallel: int
    elements_of: str = ""
    queues: list[str] = []
    slots: int = 1
    gate: str = ""
    approvals: int = 0
    calendar: str = ""
    not_before: str = ""
    not_after: str = ""
    each_of: list[str] = []


class GraphEdge(Record, frozen=True, kw_only=True):
    """A need: the step `to` waits for the step `source`.

    If `is_by_element`, an element of `to` waits only for the element of `source` with the same
    index.
    """

    source: str
    to: str
    is_by_element: bool = False


class FlowGraph(Record, frozen=True, kw_only=True):
    """The graph of a job: its steps in the order of the file, and the needs between them.

    `version` is the version of the stored job, or 0 for a job in a request. `longest` is a longest
    chain of steps, from its first to its last.
    """

    job_id: str
    namespace: str
    version: int
    is_workflow: bool
    steps: list[GraphStep]
    edges: list[GraphEdge]
    levels: list[list[str]]
    longest: list[str]


class PlannedQueue(Record, frozen=True, kw_only=True):
    """A queue that the runs or steps of a planned job enter, and the present use of its slots.

    `waiting` counts the runs or steps that wait for slots. Without its own limit (`exists` is
    false), the queue has 1 slot.
    """

    name: str
    use: str
    slots: int
    in_use: int
    waiting: int
    exists: bool


class PlannedCalendar(Record, frozen=True, kw_only=True):
    """A calendar of a planned job: whether it is open now, and when it opens next.

    `reason` is the reason why the calendar is closed. `next_opening` is in the time zone of the
    calendar. It is empty if the calendar is open, or if no opening was found before
    `searched_until`.
    """

    name: str
    is_open: bool
    reason: str = ""
    next_opening: str = ""
    searched_until: str = ""


class PlannedFlow(FlowGraph, frozen=True, kw_only=True):
    """The workflow of a planned job: its graph, and the conditions under which it would begin.

    `order` has all steps, each after all steps that it needs. The steps in `ready` would begin now:
    no gate, time, calendar, queue or freeze would hold them. `queues` and `calendars` are the first
    20 that the job names; the lists are empty if the job names none.
    """

    order: list[str] = []
    ready: list[str] = []
    queues: list[PlannedQueue] = []
    calendars: list[PlannedCalendar] = []


# Prefixes of the reason of a held step, or of a run.
GATE_REASON = "gate: "
SLOT_REASON = "slot: it waits for"  # a step waits for its own queues or that of its run
TIME_REASON = "time: "
PARALLEL_REASON = "parallel: "  # a step or elements of it wait for the end of other elements
TIMEOUT_REASON = "timeout: "
ACCEPTED_REASON = "accepted by "
SUPERSEDED_REASON = "superseded by version "
STOPPED_REASON = "the job was stopped"  # the whole reason of a run
ONLY_REASON = "only step "  # a step was skipped because its run is the run of one step
# The reason of a run that fails because of steps names these steps first. A step that was canceled
# because of a failure in its run has the reason of the run.
STEP_REASONS = ("step ", "steps ")


class StepState(StrEnum):
    """The state of a step in a run. The last four states are final."""

    WAITING = "waiting"  # a step that the step needs has not ended
    HELD = "held"  # the step may begin, but something holds it back, such as its gate
    OPEN = "open"  # the run desires its allocations
    RUNNING = "running"  # shown for an open step with a running element; never stored
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELED = "canceled"


class Outcome(StrEnum):
    """The outcome of a step for its dependents."""

    GOOD = "good"
    BAD = "bad"
    NEUTRAL = "neutral"


class FlowStatus(StrEnum):
    """The state of a run. The last three states are final."""

    RUNNING = "running"
    STOPPING = "stopping"  # it is canceled, and its tasks still end
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def has_ended(self) -> bool:
        """Return whether the run has ended."""
        return self not in (FlowStatus.RUNNING, FlowStatus.STOPPING)


class RunStep(Record, frozen=True, kw_only=True):
    """A step in a run.

    `outcome` is None until the step has ended. `since` is the time at which the step reached its
    state, in nanoseconds since the epoch. `total`, `good` and `failed` count elements. `exit_code`
    is the exit code of the element that failed last, 0 if no element failed. `opened` is the time
    at which the step was last opened. It is 0 if this never happened, and negative if the step was
    opened only in earlier attempts.
    """

    name: str
    state: StepState = StepState.WAITING
    reason: str = ""
    outcome: Outcome | None = None
    attempt: int = 1
    since: int = 0
    opened: int = 0
    total: int = 1
    good: int = 0
    failed: int = 0
    exit_code: int = 0

    @property
    def is_left_out(self) -> bool:
        """Return whether the step was skipped because the run consists of only one other step."""
        return self.state == StepState.SKIPPED and self.reason.startswith(ONLY_REASON)


class StepOutputs(Record, frozen=True, kw_only=True):
    """The outputs of an element of a step: the lines that its tasks wrote.

    `alloc_id` is the ID of the element's allocation. It is empty if only a person wrote outputs, by
    accepting the step.
    """

    step: str
    element: int
    alloc_id: str
    outputs: dict[str, str]


class FlowRun(Record, frozen=True, kw_only=True):
    """A run of a workflow: the job's version, and its state.

    `began` and `ended` are in nanoseconds since the epoch; `ended` is 0 until the end. `trigger` is
    the trigger of the evaluation that started the run. If `cleans_up` is true, the run is being
    stopped, but its clean-up steps still run. `deadline` is the time at which the run times out, in
    nanoseconds since the epoch; 0 means never. In a run that cleans up, it is the time at which
    Steward stops the clean-up steps.

    In a run of one step, only the step `only_step` runs, and if `only_element` is set, only this
    element of the step. The outputs of all other steps come from the run `outputs_of`.
    """

    namespace: str
    job_id: str
    number: int
    version: int
    status: FlowStatus = FlowStatus.RUNNING
    reason: str = ""
    trigger: str = ""
    attempt: int = 1
    began: int = 0
    ended: int = 0
    cleans_up: bool = False
    deadline: int = 0
    create_index: int = 0
    modify_index: int = 0
    only_step: str = ""
    only_element: int | None = None
    outputs_of: int = 0

    @property
    def only(self) -> str:
        """Return the one step or element that runs, such as `load[3]`; empty if all steps run."""
        return (
            self.only_step
            if self.only_element is None
            else f"{self.only_step}[{self.only_element}]"
        )

    @property
    def fails(self) -> bool:
        """Return whether a timeout or the bad outcome of a step stopped the run."""
        return self.reason.startswith((TIMEOUT_REASON, *STEP_REASONS))

    @property
    def goes_on(self) -> bool:
        """Return whether any steps of the run may still begin, even if only clean-up steps."""
        return self.status == FlowStatus.RUNNING or (
            self.status == FlowStatus.STOPPING and self.cleans_up
        )

    @property
    def is_superseded(self) -> bool:
        """Return whether the run is or was canceled only because of a newer version of its job."""
        return self.reason.startswith(SUPERSEDED_REASON)

    def stopping(self, reason: str, *, cleans_up: bool) -> "FlowRun":
        """Return a copy of the run with the status `stopping`. An existing reason is kept."""
        return msgspec.structs.replace(
            self,
            status=FlowStatus.STOPPING,
            reason=self.reason or reason,
            cleans_up=cleans_up,
            deadline=0,
        )


class StepQueue(Record, frozen=True, kw_only=True):
    """A queue of a step in a run.

    `held` counts the elements that hold slots, and `waiting` the elements that wait for slots.
    While the step waits, `before` is the number of other steps ahead of it.
    """

    name: str
    held: int
    waiting: int
    before: int


class RunStepView(RunStep, frozen=True, kw_only=True):
    """A step as the API shows it.

    `level` and `needs` are the same as in the graph. `waits_for` has the needs that have not ended.
    `until` is the time at which a held step changes automatically, in nanoseconds since the epoch;
    0 means never. The step then begins, its gate reaches the deadline, or the step is too late.
    `queues` has each queue whose slots the step holds or awaits.
    """

    level: int
    needs: list[str]
    waits_for: list[str]
    until: int = 0
    queues: list[StepQueue] = []


class RunElement(Record, frozen=True, kw_only=True):
    """An element of a step in a run, with its newest allocation in the attempt.

    `index` counts from 0. If the elements of the step come from a list, `key` and `value` are the
    key and the value of the element's item. A `value` that is not a text is written as JSON.
    `alloc_id` is empty if the element has no allocation. `attempt` is the attempt of the step in
    which the element ran, or will run. `exit_code` is 0 if the element has not failed.
    """

    index: int
    key: str = ""
    value: str = ""
    state: StepState
    attempt: int
    exit_code: int = 0
    alloc_id: str = ""


class RunActType(StrEnum):
    """The kinds of manual operations on a run."""

    CANCEL = "cancel"
    SKIP = "skip"
    ACCEPT = "accept"
    RERUN = "rerun"
    APPROVE = "approve"
    REJECT = "reject"
    STEP = "step"


class RunAct(Record, frozen=True, kw_only=True):
    """An operation on a run: its steps, the person, and the time (nanoseconds since the epoch).

    `attempt` is the attempt of the step, 0 for an operation on several steps.
    """

    act: RunActType
    steps: list[str]
    attempt: int = 0
    who: str
    note: str = ""
    time: int


class FlowRunView(FlowRun, frozen=True, kw_only=True):
    """A run with all its steps, in the order of the job, and the operations on it, oldest first.

    A request can ask for only one step: then `steps` has this step, and `elements` is a page of its
    elements.
    """

    steps: list[RunStepView]
    acts: list[RunAct]
    elements: list[RunElement] | UnsetType = UNSET


# --- jobs that follow others ---

RUN_QUEUE = "steward_run_concurrency"  # key of a job
STEP_QUEUES = "steward_concurrency"  # key of a task group
_QUEUE_META = re.compile(r"\$\{NOMAD_META_([A-Za-z0-9_.-]+)\}")
AFTER = "steward_after"
AFTER_WHEN = "steward_after_when"
SLOTS_TABLE = "queues"
SLOTS_FREE = "queues-free"  # topic: a run waits for slots, or slots may be free
ARRIVED = "triggers-arrived"  # topic: a job follows another job, or a decision is due
MOST_SOURCES = 100  # of a follower
_LONGEST = 512  # bytes of the name of a source
_SHOWN = 80  # characters of an invalid name that a message shows


class TriggerWhen(StrEnum):
    """The condition under which the end of a run starts a follower."""

    SUCCESS = "success"
    FAILURE = "failure"
    ANY = "any"


class TriggerJoin(StrEnum):
    """The rule for starting a follower: after each ended run, or after a run of every source."""

    EACH = "each"
    ALL = "all"


class Source(msgspec.Struct, frozen=True):
    """A job that a follower names."""

    namespace: str
    job_id: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.job_id}"


class RunUpdate(StrEnum):
    """The treatment of an active run when a new version of its job is registered."""

    REPLACE = "replace"  # it is canceled, and the new run begins with its first steps
    KEEP = "keep"  # it is canceled, and the new run takes over unchanged steps with good results
    FINISH = "finish"  # it continues unchanged, and the new run waits for its end


class Beyond(StrEnum):
    """The overflow policy of a queue: how it treats a run if no slot is free."""

    QUEUE = "queue"  # it waits
    SKIP = "skip"  # it is canceled
    NEWEST = "newest"  # the new run waits, and earlier waiting runs of its job are canceled
    CANCEL_OLDEST = "cancel-oldest"  # the new run waits, and the oldest active run is canceled


def slots_topic(namespace: str, name: str) -> str:
    """Return the topic of changes to a queue."""
    return f"queues/{namespace}/{name}"


class StepSlots(msgspec.Struct, frozen=True, kw_only=True):
    """The elements of a step that hold or await slots. Each one takes `slots` slots of each queue.

    `wanted` is the number of elements that hold slots or wait, and `held` the number that hold
    slots. `busy` is the number that were active or about to begin at the last decision.
    `since` is the time at which the step requested slots or last got one, in nanoseconds since the
    epoch.
    """

    namespace: str
    job_id: str
    number: int
    step: str
    names: tuple[str, ...]
    place: int
    slots: int
    wanted: int
    held: int
    busy: int
    priority: int
    arrived: int
    since: int

    @property
    def order(self) -> tuple[int, int, str, int, int]:
        """Return the sort key of steps that wait: the same order in all queues of a namespace."""
        return (-self.priority, self.arrived, self.job_id, self.number, self.place)


class SlotDemand(msgspec.Struct, frozen=True, kw_only=True):
    """The slots that a step needs after a decision; `wanted` and `busy` are as in `StepSlots`.

    `released` is the number of elements that no longer need the slots they hold.
    """

    step: str
    names: tuple[str, ...]
    slots: int
    wanted: int
    released: int = 0
    busy: int = 0


class QueueUse(StrEnum):
    """The holders of a queue's slots: either runs or steps, never both."""

    RUNS = "runs"
    STEPS = "steps"


def resolved_queue(text: str, meta: Mapping[str, str] | None) -> str:
    """Return the name of a queue of runs, with references replaced by the job's meta values."""
    return _QUEUE_META.sub(lambda match: (meta or {}).get(match[1], ""), text)


def queues_used(job: Job) -> dict[str, QueueUse]:
    """Return the names of the queues that a job uses, and whether runs or steps use each queue.

    If a name refers to the meta of a dispatch, only the children have this queue, not their parent.
    """
    uses = dict[str, QueueUse]()
    for group in job.task_groups or ():
        text = (group.meta or {}).get(STEP_QUEUES, "")
        uses |= {name.strip(): QueueUse.STEPS for name in text.split(",") if name.strip()}
    text = (job.meta or {}).get(RUN_QUEUE, "")
    is_open = job.parameterized_job is not None and not job.dispatched and "${" in text
    if text and not is_open:
        uses[resolved_queue(text, job.meta)] = QueueUse.RUNS
    return uses


def read_sources(text: str) -> tuple[str, ...]:
    """Parse a list of jobs, each `JOB` or `NAMESPACE/JOB`, separated by commas."""
    sources = tuple(part.strip() for part in text.split(","))
    if len(sources) > MOST_SOURCES:
        raise Invalid(f"must have at most {MOST_SOURCES} jobs")
    for source in sources:
        namespace, slash, job_id = source.partition("/")
        if not source or (slash and not (namespace and job_id)):
            raise Invalid("must be jobs separated by commas, each JOB or NAMESPACE/JOB")
        if len(source.encode()) > _LONGEST:
            raise Invalid(f"has a name of more than {_LONGEST} bytes: {source[:_SHOWN]}")
    if len(set(sources)) < len(sources):
        twice = next(entry for entry in sources if sources.count(entry) > 1)
        raise Invalid(f'names "{twice[:_SHOWN]}" twice')
    return sources


def sources_of(job: Job) -> tuple[Source, ...]:
    """Return the jobs that a job follows, in the order of the job's definition."""
    text = (job.meta or {}).get(AFTER)
    if text is None or not job.launches_children:
        return ()
    try:
        names = read_sources(text)
    except Invalid:  # registration rejects invalid values
        return ()
    parts = (name.partition("/") for name in names)
    return tuple(
        dict.fromkeys(
            Source(head, rest) if slash else Source(job.namespace, head)
            for head, slash, rest in parts
        )
    )


def when_of(job: Job) -> TriggerWhen:
    """Return the condition under which the end of a run starts the follower `job`."""
    try:
        return TriggerWhen((job.meta or {}).get(AFTER_WHEN, TriggerWhen.SUCCESS))
    except ValueError:  # registration rejects invalid values
        return TriggerWhen.SUCCESS
