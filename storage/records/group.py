"""The task group: tasks that are placed together, and their policies."""

from enum import StrEnum

from storage.records.base import HOUR, MINUTE, SECOND, Duration, Record
from storage.records.constraints import Affinity, Constraint, Spread
from storage.records.scaling import Scaling
from storage.records.task import Consul, Network, RestartPolicy, Service, Task


class DelayFunction(StrEnum):
    """The function by which the delay between reschedules grows."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"
    FIBONACCI = "fibonacci"


class Update(Record, frozen=True, kw_only=True):
    """The update strategy: the rules for replacing the allocations of an old version."""

    stagger: Duration = 0
    max_parallel: int = 0
    health_check: str = ""
    min_healthy_time: Duration = 0
    healthy_deadline: Duration = 0
    progress_deadline: Duration = 0
    auto_revert: bool = False
    auto_promote: bool = False
    canary: int = 0


class ReschedulePolicy(Record, frozen=True, kw_only=True):
    """The reschedule policy: the rules for placing a failed allocation again."""

    attempts: int = 0
    interval: Duration = 0
    delay: Duration = 0
    delay_function: str = ""
    max_delay: Duration = 0
    unlimited: bool = False


class Migrate(Record, frozen=True, kw_only=True):
    """The migrate strategy: the pace at which allocations leave a draining node."""

    max_parallel: int = 1
    health_check: str = "checks"
    min_healthy_time: Duration = 10 * SECOND
    healthy_deadline: Duration = 5 * MINUTE


class EphemeralDisk(Record, frozen=True, kw_only=True):
    """The disk limit of an allocation in MB, and whether its replacement inherits the data."""

    sticky: bool = False
    size_mb: int = 300
    migrate: bool = False


class MountOptions(Record, frozen=True, kw_only=True):
    """Options of a volume mount."""

    fs_type: str = ""
    mount_flags: list[str] | None = None


READER_ONLY = "single-node-reader-only"  # an access mode


class Volume(Record, frozen=True, kw_only=True):
    """A volume that the tasks of a group may mount."""

    name: str = ""
    type: str = ""
    source: str = ""
    read_only: bool = False
    sticky: bool = False
    access_mode: str = ""
    attachment_mode: str = ""
    mount_options: MountOptions | None = None
    per_alloc: bool = False


class Disconnect(Record, frozen=True, kw_only=True):
    """The behavior when the node of an allocation is unreachable."""

    lost_after: Duration | None = None
    stop_on_client_after: Duration | None = None
    replace: bool = True
    reconcile: str = "best_score"


class TaskGroup(Record, frozen=True, kw_only=True):
    """Tasks that share a node, a directory and a network. The group has `count` allocations."""

    name: str = ""
    count: int = 1
    constraints: list[Constraint] | None = None
    affinities: list[Affinity] | None = None
    spreads: list[Spread] | None = None
    tasks: list[Task] | None = None
    meta: dict[str, str] | None = None
    update: Update | None = None
    restart_policy: RestartPolicy = RestartPolicy()
    reschedule_policy: ReschedulePolicy | None = None
    migrate: Migrate | None = None
    ephemeral_disk: EphemeralDisk = EphemeralDisk()
    networks: list[Network] | None = None
    services: list[Service] | None = None
    volumes: dict[str, Volume] | None = None
    scaling: Scaling | None = None
    consul: Consul | None = None
    disconnect: Disconnect | None = None
    shutdown_delay: Duration | None = None
    max_run_duration: Duration | None = None
    stop_after_client_disconnect: Duration | None = None
    max_client_disconnect: Duration | None = None
    prevent_reschedule_on_lost: bool = False

    def task(self, name: str) -> Task | None:
        """Return a task by name, or None."""
        # A loop instead of a generator, because the runner calls this often.
        for task in self.tasks or ():
            if task.name == name:
                return task
        return None


# Nomad's default policies by job type (Nomad's recorded responses: http-basics).
_KEPT_ALIVE = RestartPolicy(attempts=2, interval=30 * MINUTE, delay=15 * SECOND, mode="fail")
_RUN_ONCE = RestartPolicy(attempts=3, interval=24 * HOUR, delay=15 * SECOND, mode="fail")
RESTART_POLICIES = {
    "service": _KEPT_ALIVE,
    "system": _KEPT_ALIVE,
    "batch": _RUN_ONCE,
    "sysbatch": _RUN_ONCE,
}
RESCHEDULE_POLICIES = {
    "service": ReschedulePolicy(
        delay=30 * SECOND,
        delay_function=DelayFunction.EXPONENTIAL,
        max_delay=HOUR,
        unlimited=True,
    ),
    "batch": ReschedulePolicy(
        attempts=1,
        interval=24 * HOUR,
        delay=5 * SECOND,
        delay_function=DelayFunction.CONSTANT,
    ),
}
ROLLING_UPDATE = Update(
    stagger=30 * SECOND,
    max_parallel=1,
    health_check="checks",
    min_healthy_time=10 * SECOND,
    healthy_deadline=5 * MINUTE,
    progress_deadline=10 * MINUTE,
)
