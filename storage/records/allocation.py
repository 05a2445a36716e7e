"""The allocation: one instance of a task group on a node, with its state.

Each part of an allocation has one owner. The placement never changes, the desired state belongs to
the scheduler, and the client state to the runner.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from storage.records.base import Record, SparseRecord
from storage.records.evaluation import PlacementMetric
from storage.records.numbers import parse_integer
from storage.records.task import Lifecycle


class DesiredStatus(StrEnum):
    """The desired status, set by the scheduler."""

    RUN = "run"
    STOP = "stop"
    EVICT = "evict"


class ClientStatus(StrEnum):
    """The client status, set by the runner."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    LOST = "lost"
    UNKNOWN = "unknown"


# The description of an allocation that had to end, although its status is "complete" (as in Nomad).
OVERTIME = "allocation exceeded max_run_duration"
TIME_LIMIT_EVENT = "Max Run Duration Exceeded"  # event of the tasks of such an allocation
TIME_LIMIT = "ended by max_run_duration"  # in texts, after the name of an allocation
CLIENT_TERMINAL = frozenset({ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST})


def is_overtime(client_status: str, description: str) -> bool:
    """Return whether an allocation ended because of its `max_run_duration`."""
    return client_status == ClientStatus.COMPLETE and description == OVERTIME


class TaskPhase(StrEnum):
    """The state of a task."""

    PENDING = "pending"
    RUNNING = "running"
    DEAD = "dead"


class TaskEvent(Record, frozen=True, kw_only=True):
    """A task event. Time and delays are in nanoseconds."""

    type: str
    time: int
    display_message: str = ""
    details: dict[str, str] = {}
    message: str = ""
    fails_task: bool = False
    restart_reason: str = ""
    setup_error: str = ""
    driver_error: str = ""
    driver_message: str = ""
    exit_code: int = 0
    signal: int = 0
    kill_timeout: int = 0
    kill_error: str = ""
    kill_reason: str = ""
    start_delay: int = 0
    download_error: str = ""
    validation_error: str = ""
    disk_limit: int = 0
    failed_sibling: str = ""
    secrets_error: str = ""
    vault_error: str = ""  # Vault's name for secrets_error
    task_signal_reason: str = ""
    task_signal: str = ""
    generic_source: str = ""


class StoredTaskEvent(TaskEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A task event as stored, without empty fields.

    `steward_stderr` holds the last lines of the attempt's standard error. `steward_log_ends` holds
    the lengths of the logs `stdout` and `stderr` at the end of the attempt, in bytes.
    """

    steward_stderr: str = ""
    steward_log_ends: dict[str, int] = {}


class TaskState(Record, frozen=True, kw_only=True):
    """The state of a task; times are RFC 3339 strings."""

    state: str = TaskPhase.PENDING
    failed: bool = False
    restarts: int = 0
    last_restart: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    paused: str = ""


class TaskStateWithEvents(TaskState, frozen=True, kw_only=True):
    """A task state in wire form, with its newest events."""

    events: list[TaskEvent] | None = None


class AllocatedPort(SparseRecord, frozen=True, kw_only=True):
    """A port of an allocation."""

    label: str
    value: int
    to: int = 0
    host_ip: str


class OfferedPort(SparseRecord, frozen=True, kw_only=True):
    """A port in an allocated network."""

    label: str
    value: int
    to: int = 0
    host_network: str = ""


class AllocatedNetwork(SparseRecord, frozen=True, kw_only=True):
    """The network of an allocation."""

    mode: str = ""
    device: str = ""
    cidr: str = ""
    ip: str = ""
    hostname: str = ""
    mbits: int = 0
    reserved_ports: list[OfferedPort] | None = None
    dynamic_ports: list[OfferedPort] | None = None


class AllocatedCPU(Record, frozen=True, kw_only=True):
    """The CPU of a task: in MHz, or as the IDs of reserved cores."""

    cpu_shares: int = msgspec.field(default=0, name="CpuShares")
    reserved_cores: list[int] | None = None


class AllocatedMemory(Record, frozen=True, kw_only=True):
    """Reserved and maximum memory in MB."""

    memory_mb: int = 0
    memory_max_mb: int = 0


class AllocatedDevice(Record, frozen=True, kw_only=True):
    """The devices of one kind that a task has."""

    vendor: str = ""
    type: str = ""
    name: str = ""
    device_ids: list[str] = []


class AllocatedTask(Record, frozen=True, kw_only=True):
    """The resources of one task of an allocation."""

    cpu: AllocatedCPU = msgspec.field(name="Cpu")
    memory: AllocatedMemory
    networks: list[AllocatedNetwork] | None = None
    devices: list[AllocatedDevice] | None = None


class AllocatedShared(Record, frozen=True, kw_only=True):
    """The resources shared by the tasks of an allocation."""

    disk_mb: int = 0
    networks: list[AllocatedNetwork] | None = None
    ports: list[AllocatedPort] | None = None


class AllocatedResources(Record, frozen=True, kw_only=True):
    """All resources of an allocation on its node."""

    tasks: Mapping[str, AllocatedTask]
    task_lifecycles: Mapping[str, Lifecycle | None]
    shared: AllocatedShared

    @property
    def cpu(self) -> int:
        """Return the CPU in MHz."""
        return sum(task.cpu.cpu_shares for task in self.tasks.values())

    @property
    def memory(self) -> int:
        """Return the memory in MB."""
        return sum(task.memory.memory_mb for task in self.tasks.values())

    @property
    def disk(self) -> int:
        """Return the disk limit in MB."""
        return self.shared.disk_mb

    def ports_of(self, task: str) -> Iterator[AllocatedPort]:
        """Yield the ports of a task's group and, for older job files, of the task itself."""
        yield from self.shared.ports or ()
        resources = self.tasks.get(task)
        for network in (resources and resources.networks) or ():
            for port in (*(network.reserved_ports or ()), *(network.dynamic_ports or ())):
                yield AllocatedPort(
                    label=port.label, value=port.value, to=port.to, host_ip=network.ip
                )

    @property
    def ports(self) -> set[int]:
        """Return all ports except a static port 0, which only a job in JSON can request."""
        numbers = {port.value for port in self.shared.ports or ()}
        for task in self.tasks.values():
            for network in task.networks or ():
                for ports in (network.reserved_ports, network.dynamic_ports):
                    numbers.update(port.value for port in ports or ())
        return numbers - {0}

    @property
    def static_ports(self) -> list[tuple[str, int]]:
        """Return the label and number of each static port."""
        of_tasks = [network for task in self.tasks.values() for network in task.networks or ()]
        return [
            (port.label, port.value)
            for network in (*(self.shared.networks or ()), *of_tasks)
            for port in network.reserved_ports or ()
        ]

    @property
    def cores(self) -> set[int]:
        """Return the reserved cores."""
        return {core for task in self.tasks.values() for core in task.cpu.reserved_cores or ()}

    @property
    def device_ids(self) -> set[str]:
        """Return the IDs of the devices."""
        devices = [device for task in self.tasks.values() for device in task.devices or ()]
        return {device_id for device in devices for device_id in device.device_ids}


class Placement(Record, frozen=True, kw_only=True):
    """The part of an allocation that never changes after placement."""

    resources: AllocatedResources
    metrics: PlacementMetric
    node_name: str
    signing_key_id: str = ""


class RescheduleEvent(Record, frozen=True, kw_only=True):
    """One reschedule: the earlier, failed allocation and the time of its replacement."""

    reschedule_time: int
    prev_alloc_id: str
    prev_node_id: str
    delay: int


class RescheduleTracker(Record, frozen=True, kw_only=True):
    """The failed allocations that this allocation replaces, oldest first."""

    events: list[RescheduleEvent]
    last_reschedule: str = "ok"


class DesiredTransition(Record, frozen=True, kw_only=True):
    """Requests to the scheduler about this allocation. The next evaluation carries them out."""

    migrate: bool | None = None
    reschedule: bool | None = None
    force_reschedule: bool | None = None
    no_shutdown_delay: bool | None = None
    migrate_disable_placement: bool | None = None


class DesiredState(SparseRecord, frozen=True, kw_only=True):
    """The parts of the desired state other than `desired_status`."""

    description: str = ""
    transition: DesiredTransition = DesiredTransition()
    previous_allocation: str = ""
    next_allocation: str = ""
    followup_eval_id: str = ""
    reschedule_tracker: RescheduleTracker | None = None
    preempted_allocations: list[str] | None = None
    preempted_by_allocation: str = ""
    waits_for: list[str] | None = None  # allocations that must end before its tasks start


class DeploymentHealth(Record, frozen=True, kw_only=True):
    """The health of an allocation in a deployment. `healthy` is None until it is decided."""

    healthy: bool | None = None
    timestamp: str | None = "0001-01-01T00:00:00Z"  # Nomad's listings may contain null
    canary: bool = False
    modify_index: int = 0


class NetworkStatus(Record, frozen=True, kw_only=True):
    """The address of an allocation that does not use the host network."""

    interface_name: str = ""
    address: str = ""
    address_ipv6: str = ""
    dns: dict[str, list[str]] | None = None


class StopCause(StrEnum):
    """The reason why the runner stops an attempt, from the weakest to the strongest."""

    UNHEALTHY = "unhealthy"  # the restart policy decides
    RESTART = "restart"  # a user or a change action requested another attempt
    FAIL = "fail"  # the task fails without another attempt
    KILL = "kill"  # the task must not run any longer


class AttemptStop(SparseRecord, frozen=True, kw_only=True):
    """A stop of a task's attempt that has begun. Times are in nanoseconds; 0 means not yet."""

    cause: StopCause
    delayed_at: int = 0  # start of the shutdown delay
    signaled_at: int = 0  # kill signal; start of the kill timeout


class ClientState(SparseRecord, frozen=True, kw_only=True):
    """The parts of the client state other than `client_status`.

    `stops` are the unfinished stops of attempts, by task. `shutdown_at` is the start of the group's
    shutdown delay in nanoseconds; 0 means not yet. A later daemon continues them.
    """

    description: str = ""
    task_states: Mapping[str, TaskState] | None = None
    network_status: NetworkStatus | None = None  # of a group on the bridge
    stops: Mapping[str, AttemptStop] | None = None
    shutdown_at: int = 0


class AllocationChange(Record, frozen=True, kw_only=True):
    """The changeable parts of an allocation, as the payload of an event has them."""

    desired_status: str
    desired: DesiredState
    client_status: str
    client: ClientState
    health: DeploymentHealth | None


class Allocation(Record, frozen=True, kw_only=True):
    """One instance of a task group, with all its parts."""

    id: str
    namespace: str
    job_id: str
    job_version: int
    job_type: str
    task_group: str
    name: str
    node_id: str
    eval_id: str
    deployment_id: str
    desired_status: str
    client_status: str
    placement: Placement
    desired: DesiredState
    client: ClientState
    health: DeploymentHealth | None
    create_index: int
    modify_index: int
    alloc_modify_index: int
    create_time: int
    modify_time: int
    request_id: str = ""  # the origin of the last change of the desired state

    @property
    def client_terminal(self) -> bool:
        """Return whether the allocation's tasks have ended permanently."""
        return self.client_status in CLIENT_TERMINAL

    @property
    def is_overtime(self) -> bool:
        """Return whether the allocation ended because of its `max_run_duration`."""
        return is_overtime(self.client_status, self.client.description)

    @property
    def has_succeeded(self) -> bool:
        """Return whether all tasks completed without a failure, within the `max_run_duration`."""
        return self.client_status == ClientStatus.COMPLETE and not self.is_overtime

    @property
    def has_failed(self) -> bool:
        """Return whether the allocation failed, was lost, or exceeded its `max_run_duration`."""
        return self.client_status in (ClientStatus.FAILED, ClientStatus.LOST) or self.is_overtime

    @property
    def terminal(self) -> bool:
        """Return whether the allocation has ended or is no longer desired."""
        return self.desired_status != DesiredStatus.RUN or self.client_terminal

    @property
    def index(self) -> int:
        """Return the index in the allocation's name: 3 for `job.group[3]`, -1 without an index."""
        _, bracket, number = self.name.removesuffix("]").rpartition("[")
        return parse_integer(number) if bracket and number.isdecimal() else -1
