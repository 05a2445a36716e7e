"""What operators ask about the daemon as a cluster of one, and set for its scheduler."""

from typing import Annotated

import msgspec

from storage.records.base import Record
from storage.records.job import JobType


class PreemptionConfig(Record, frozen=True, kw_only=True):
    """For which kinds of jobs others may have to make room."""

    system_scheduler_enabled: bool = True
    sys_batch_scheduler_enabled: bool = False
    batch_scheduler_enabled: bool = False
    service_scheduler_enabled: bool = False

    def makes_room_for(self, job_type: str) -> bool:
        """Tell whether others may have to make room for jobs of a type."""
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
    """How the scheduler goes about its work."""

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
    """The scheduler's configuration as it is."""

    scheduler_config: SchedulerConfig
    index: int
    known_leader: bool = True
    last_contact: int = 0
    next_token: str = ""


class SchedulerConfigUpdated(Record, frozen=True, kw_only=True):
    """Whether the scheduler's configuration was changed."""

    updated: bool
    index: int


class ConfinementRule(Record, frozen=True, kw_only=True):
    """A limit of a process or of the node, and whether it holds; the reason says by what, or why not."""

    rule: str
    holds: bool
    reason: str


class ConfinedProcess(Record, frozen=True, kw_only=True):
    """The limits of one process: of the daemon, of its launcher, or of a task of a driver."""

    name: str
    pid: int = msgspec.field(name="PID")
    alloc_id: str = ""
    task: str = ""
    rules: list[ConfinementRule]


class ConfinementShown(Record, frozen=True, kw_only=True):
    """Which limits hold on this node, as the kernel says, and for tasks as the settings say."""

    processes: list[ConfinedProcess]
    node: list[ConfinementRule]


class FaultShown(Record, frozen=True, kw_only=True):
    """A unit of the daemon's work that failed at its last attempt."""

    kind: str
    key: str
    failures: int
    reason: str
    since: str
    gives_up: bool


class RaftServer(Record, frozen=True, kw_only=True):
    """A server that keeps the state."""

    id: str
    node: str
    address: str
    leader: bool = True
    voter: bool = True
    raft_protocol: str = "3"


class RaftConfiguration(Record, frozen=True, kw_only=True):
    """The servers that keep the state."""

    servers: list[RaftServer]
    index: int = 0


class ServerHealth(Record, frozen=True, kw_only=True):
    """How well a server follows the leader."""

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
    """Whether the servers are well, and how many may fail."""

    healthy: bool = True
    failure_tolerance: int = 0
    servers: list[ServerHealth]
    leader: str
    voters: list[str]


class AutopilotConfiguration(Record, frozen=True, kw_only=True):
    """How dead servers would be replaced, if there could be any."""

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
    """An agent as the others of its cluster know it."""

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
    """All agents of a cluster."""

    server_name: str
    server_region: str
    server_dc: str = msgspec.field(name="ServerDC")
    members: list[Member]
