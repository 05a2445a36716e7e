"""The operator API: the daemon as a cluster of one server, and the scheduler configuration."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from storage.records.base import Record
from storage.records.job import JobType


class PreemptionConfig(Record, frozen=True, kw_only=True):
    """The job types for which preemption is enabled."""

    system_scheduler_enabled: bool = True
    sys_batch_scheduler_enabled: bool = False
    batch_scheduler_enabled: bool = False
    service_scheduler_enabled: bool = False

    def may_preempt(self, job_type: str) -> bool:
        """Return whether jobs of a type may preempt other jobs."""
        match job_type:
            case JobType.SYSTEM:
                return self.system_scheduler_enabled
            case JobType.SYSBATCH:
                return self.sys_batch_scheduler_enabled
            case JobType.BATCH:
                return self.batch_scheduler_enabled
            case _:
                return self.service_scheduler_enabled


class SchedulerConfig(Record, frozen=True, kw_only=True):
    """The scheduler configuration."""

    inert: ClassVar[Mapping[str, str]] = {
        "node_limit_for_feasibility_checks": "the scheduler always examines every node",
    }

    scheduler_algorithm: Annotated[str, msgspec.Meta(extra={"go": "api.SchedulerAlgorithm"})] = (
        "binpack"
    )
    preemption_config: PreemptionConfig = PreemptionConfig()
    memory_oversubscription_enabled: bool = False
    reject_job_registration: bool = False
    pause_eval_broker: bool = False
    node_limit_for_feasibility_checks: int = 0
    create_index: int = 0
    modify_index: int = 0


class SchedulerConfigResponse(Record, frozen=True, kw_only=True):
    """The response with the scheduler configuration."""

    scheduler_config: SchedulerConfig
    index: int
    known_leader: bool = True
    last_contact: int = 0
    next_token: str = ""


class SchedulerConfigUpdated(Record, frozen=True, kw_only=True):
    """The response to a change of the scheduler configuration."""

    updated: bool
    index: int


class ConfinementRule(Record, frozen=True, kw_only=True):
    """A restriction of a process or node, and whether it is enforced.

    `reason` is the mechanism of an enforced restriction, or the reason why it is not enforced.
    """

    rule: str
    holds: bool
    reason: str


class ConfinedProcess(Record, frozen=True, kw_only=True):
    """The restrictions of one process: the daemon, its launcher, or a task of a driver."""

    name: str
    pid: int = msgspec.field(name="PID")
    alloc_id: str = ""
    task: str = ""
    rules: list[ConfinementRule]


class ConfinementShown(Record, frozen=True, kw_only=True):
    """The restrictions of this node.

    The restrictions of processes are read from the kernel. The restrictions of tasks come from the
    configuration.
    """

    processes: list[ConfinedProcess]
    node: list[ConfinementRule]


class FaultShown(Record, frozen=True, kw_only=True):
    """A fault: a unit of the daemon's work whose last attempt failed."""

    kind: str
    key: str
    failures: int
    reason: str
    since: str
    gives_up: bool


class FaultRelease(Record, frozen=True, kw_only=True):
    """A request to retry a unit of the daemon's work."""

    kind: str = ""
    key: str = ""


class RaftServer(Record, frozen=True, kw_only=True):
    """A server of the cluster."""

    id: str
    node: str
    address: str
    leader: bool = True
    voter: bool = True
    raft_protocol: str = "3"


class RaftConfiguration(Record, frozen=True, kw_only=True):
    """The servers of the cluster."""

    servers: list[RaftServer]
    index: int = 0


class ServerHealth(Record, frozen=True, kw_only=True):
    """The health of a server."""

    id: str
    name: str
    address: str
    version: str
    serf_status: str = "alive"
    leader: bool = True
    last_contact: str = "0s"
    last_term: int = 1
    last_index: int
    healthy: bool = True
    voter: bool = True
    stable_since: str


class AutopilotHealth(Record, frozen=True, kw_only=True):
    """The health of all servers, and how many may fail."""

    healthy: bool = True
    failure_tolerance: int = 0
    servers: list[ServerHealth]
    leader: str
    voters: list[str]


class AutopilotConfiguration(Record, frozen=True, kw_only=True):
    """The settings for replacing dead servers, which have no effect here."""

    cleanup_dead_servers: bool = True
    last_contact_threshold: str = "200ms"
    max_trailing_logs: int = 250
    min_quorum: int = 0
    server_stabilization_time: str = "10s"
    enable_redundancy_zones: bool = False
    disable_upgrade_migration: bool = False
    enable_custom_upgrades: bool = False
    create_index: int = 1
    modify_index: int = 1


class Member(Record, frozen=True, kw_only=True):
    """An agent of the cluster."""

    name: str
    addr: str
    port: int
    status: str = "alive"
    tags: dict[str, str]
    protocol_min: int = 1
    protocol_max: int = 5
    protocol_cur: int = 2
    delegate_min: int = 2
    delegate_max: int = 5
    delegate_cur: int = 4


class Members(Record, frozen=True, kw_only=True):
    """All agents of the cluster."""

    server_name: str
    server_region: str
    server_dc: str = msgspec.field(name="ServerDC")
    members: list[Member]
