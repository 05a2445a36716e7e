"""Records that the server sends. Times and durations are in nanoseconds unless stated otherwise."""

from collections.abc import Mapping

import msgspec

from steward_client.wire import Record

_ENDED = frozenset({"complete", "failed", "lost"})
_OVERTIME = "allocation exceeded max_run_duration"  # the status of such an allocation is complete
_EXITED = "Terminated"  # the type of the task event with the exit code


class Registered(Record, frozen=True, kw_only=True):
    """The response to a registration. `eval_id` is empty for jobs that only launch children."""

    eval_id: str = ""
    job_modify_index: int = 0
    warnings: str = ""


class Dispatched(Record, frozen=True, kw_only=True):
    """The child that a dispatch has started. `index` is the index of the write."""

    job_id: str = msgspec.field(name="DispatchedJobID")
    eval_id: str = ""
    index: int = 0


class KeptFile(Record, frozen=True, kw_only=True):
    """A kept file of an ended task. `size` is in bytes, `digest` the SHA-256 as hexadecimal digits."""

    task: str
    path: str
    size: int = 0
    digest: str = ""


class JobStub(Record, frozen=True, kw_only=True):
    """A job in a listing: `status` is pending, running or dead."""

    id: str
    parent_id: str = ""
    name: str = ""
    namespace: str = ""
    type: str = ""
    priority: int = 0
    periodic: bool = False
    parameterized: bool = msgspec.field(default=False, name="ParameterizedJob")
    stop: bool = False
    status: str = ""
    status_description: str = ""
    submit_time: int = 0
    create_index: int = 0
    modify_index: int = 0
    job_modify_index: int = 0


class JobDetail(Record, frozen=True, kw_only=True):
    """The newest version of a job: the fields that describe its state.

    `Client.job_document` returns the whole definition.
    """

    id: str
    parent_id: str = ""
    name: str = ""
    namespace: str = ""
    type: str = ""
    priority: int = 0
    datacenters: list[str] = []
    meta: dict[str, str] = {}
    dispatched: bool = False
    payload: bytes = b""
    stop: bool = False
    status: str = ""
    status_description: str = ""
    stable: bool = False
    version: int = 0
    submit_time: int = 0
    create_index: int = 0
    modify_index: int = 0
    job_modify_index: int = 0


class PlacementFailure(Record, frozen=True, kw_only=True):
    """The reasons why a group was not placed, each with the number of nodes that it excludes."""

    nodes_evaluated: int = 0
    nodes_filtered: int = 0
    nodes_exhausted: int = 0
    constraint_filtered: Mapping[str, int] = {}
    class_filtered: Mapping[str, int] = {}
    dimension_exhausted: Mapping[str, int] = {}


class Evaluation(Record, frozen=True, kw_only=True):
    """A request to the scheduler: `status` is pending, blocked, complete, failed or canceled."""

    id: str
    namespace: str = ""
    job_id: str = ""
    type: str = ""
    triggered_by: str = ""
    priority: int = 0
    status: str = ""
    status_description: str = ""
    wait_until: str = ""
    next_eval: str = ""
    blocked_eval: str = ""
    deployment_id: str = ""
    failed_tg_allocs: Mapping[str, PlacementFailure] = {}
    create_index: int = 0
    modify_index: int = 0


class TaskEvent(Record, frozen=True, kw_only=True):
    """A task event."""

    type: str = ""
    time: int = 0
    display_message: str = ""
    exit_code: int = 0
    signal: int = 0
    details: dict[str, str] = {}


class TaskState(Record, frozen=True, kw_only=True):
    """The state of a task: `state` is pending, running or dead; times are RFC 3339 strings."""

    state: str = ""
    failed: bool = False
    restarts: int = 0
    started_at: str = ""
    finished_at: str = ""
    events: list[TaskEvent] = []

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the last attempt, or None if no attempt has ended."""
        ends = [event for event in self.events if event.type == _EXITED]
        return ends[-1].exit_code if ends else None

    @property
    def signal(self) -> int:
        """Return the signal that ended the last attempt, or 0 if no signal ended it."""
        ends = [event for event in self.events if event.type == _EXITED]
        return ends[-1].signal if ends else 0


class DeploymentHealth(Record, frozen=True, kw_only=True):
    """The health of an allocation in a deployment."""

    healthy: bool | None = None
    canary: bool = False


class Allocation(Record, frozen=True, kw_only=True):
    """An allocation: `client_status` is pending, running, complete, failed, lost or unknown."""

    id: str
    eval_id: str = ""
    name: str = ""
    namespace: str = ""
    node_id: str = ""
    node_name: str = ""
    job_id: str = ""
    job_version: int = 0
    task_group: str = ""
    desired_status: str = ""
    desired_description: str = ""
    client_status: str = ""
    client_description: str = ""
    task_states: Mapping[str, TaskState] = {}
    deployment_status: DeploymentHealth | None = None
    followup_eval_id: str = ""
    previous_allocation: str = ""
    next_allocation: str = ""
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0
    modify_time: int = 0

    @property
    def has_ended(self) -> bool:
        """Return whether no task of the allocation runs anymore."""
        return self.client_status in _ENDED

    @property
    def has_succeeded(self) -> bool:
        """Return whether the tasks of the allocation completed before its `max_run_duration`."""
        return self.client_status == "complete" and self.client_description != _OVERTIME


class DeploymentGroup(Record, frozen=True, kw_only=True):
    """The progress of one group of a deployment."""

    promoted: bool = False
    desired_canaries: int = 0
    desired_total: int = 0
    placed_allocs: int = 0
    healthy_allocs: int = 0
    unhealthy_allocs: int = 0


class Deployment(Record, frozen=True, kw_only=True):
    """The rollout of a version: `status` is running, paused, successful, failed or cancelled."""

    id: str
    namespace: str = ""
    job_id: str = ""
    job_version: int = 0
    status: str = ""
    status_description: str = ""
    task_groups: Mapping[str, DeploymentGroup] = {}
    create_index: int = 0
    modify_index: int = 0


class DesiredUpdates(Record, frozen=True, kw_only=True):
    """The numbers of a group's allocations that a plan would place, stop, update, and so on."""

    ignore: int = 0
    place: int = 0
    migrate: int = 0
    stop: int = 0
    in_place_update: int = 0
    destructive_update: int = 0
    canary: int = 0
    preemptions: int = 0


class PlanAnnotations(Record, frozen=True, kw_only=True):
    """The changes of a plan by group."""

    desired_updates: Mapping[str, DesiredUpdates] = msgspec.field(
        default={}, name="DesiredTGUpdates"
    )


class FieldDiff(Record, frozen=True, kw_only=True):
    """A changed field: `type` is Added, Deleted, Edited or None."""

    type: str = ""
    name: str = ""
    old: str = ""
    new: str = ""
    annotations: list[str] = []


class ObjectDiff(Record, frozen=True, kw_only=True):
    """A changed block of a job, a group or a task."""

    type: str = ""
    name: str = ""
    fields: list[FieldDiff] = []
    objects: list["ObjectDiff"] = []


class TaskDiff(Record, frozen=True, kw_only=True):
    """A changed task."""

    type: str = ""
    name: str = ""
    fields: list[FieldDiff] = []
    objects: list[ObjectDiff] = []
    annotations: list[str] = []


class GroupDiff(Record, frozen=True, kw_only=True):
    """A changed group."""

    type: str = ""
    name: str = ""
    fields: list[FieldDiff] = []
    objects: list[ObjectDiff] = []
    tasks: list[TaskDiff] = []
    updates: dict[str, int] = {}


class JobDiff(Record, frozen=True, kw_only=True):
    """The difference between the stored job and the planned job."""

    type: str = ""
    id: str = ""
    fields: list[FieldDiff] = []
    objects: list[ObjectDiff] = []
    groups: list[GroupDiff] = msgspec.field(default=[], name="TaskGroups")


class Plan(Record, frozen=True, kw_only=True):
    """The effect that a registration would have.

    Pass `job_modify_index` to `Client.run` as `enforce_index`. Then the registration fails if the
    job has changed since the plan.
    """

    job_modify_index: int = 0
    annotations: PlanAnnotations = PlanAnnotations()
    diff: JobDiff = JobDiff()
    failed_tg_allocs: Mapping[str, PlacementFailure] = {}
    warnings: str = ""
    next_periodic_launch: str = ""


class Lock(Record, frozen=True, kw_only=True):
    """The lock of a variable; durations are strings such as `15s`."""

    id: str = ""
    ttl: str = ""
    lock_delay: str = ""


class Variable(Record, frozen=True, kw_only=True):
    """A variable. A listing has no `items`."""

    path: str
    namespace: str = ""
    items: dict[str, str] = {}
    lock: Lock | None = None
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0
    modify_time: int = 0


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a task. `exit_code` is None if the task never ran.

    The beginning of the output may be missing.
    """

    exit_code: int | None
    signal: int
    failed: bool
    stdout: bytes = b""
    stderr: bytes = b""


class AllocationResult(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that has ended, and the results of its tasks by task name."""

    allocation: Allocation
    tasks: Mapping[str, TaskResult]


class WorkflowRun(Record, frozen=True, kw_only=True):
    """The run of a workflow: `status` is running, stopping, succeeded, failed or canceled."""

    number: int
    version: int
    status: str
    reason: str = ""


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job. Of allocations with the same name, only the newest is included.

    `run` is the run of a workflow, or None for other jobs.
    """

    job_id: str
    status_description: str
    allocations: list[AllocationResult]
    run: WorkflowRun | None = None

    @property
    def succeeded(self) -> bool:
        """Return whether every allocation completed; for a workflow, whether its run succeeded."""
        if self.run is not None:
            return self.run.status == "succeeded"
        return bool(self.allocations) and all(
            result.allocation.has_succeeded for result in self.allocations
        )

    @property
    def tasks(self) -> Mapping[str, TaskResult]:
        """Return the results of the newest allocation's tasks, by task name.

        The mapping is empty if no allocation was placed.
        """
        return self.allocations[-1].tasks if self.allocations else {}
