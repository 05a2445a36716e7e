"""A job summary for dashboards, with allocations, children and the newest deployment."""

from msgspec import UNSET, UnsetType

from storage.records.base import Record
from storage.records.state import StateLine


class AllocationHealth(Record, frozen=True, kw_only=True):
    """The health of an allocation in a deployment, and whether the allocation is a canary."""

    canary: bool = False
    healthy: bool | None = None


class AllocationStatus(Record, frozen=True, kw_only=True):
    """A summary of an allocation."""

    id: str
    group: str
    client_status: str
    node_id: str
    job_version: int
    followup_eval_id: str
    has_paused_task: bool = False
    deployment_status: AllocationHealth


class LatestDeployment(Record, frozen=True, kw_only=True):
    """A summary of a job's newest deployment."""

    id: str
    is_active: bool
    job_version: int
    status: str
    status_description: str
    all_auto_promote: bool
    requires_promotion: bool


class JobStatusLine(Record, frozen=True, kw_only=True):
    """A summary of a job; `group_count_sum` is the desired number of allocations of all groups."""

    id: str
    namespace: str
    name: str
    type: str
    node_pool: str
    datacenters: list[str] | None
    priority: int
    version: int
    parent_id: str
    status: str
    stop: bool
    submit_time: int
    modify_index: int
    is_pack: bool = False
    group_count_sum: int
    child_statuses: list[str] | None
    allocs: list[AllocationStatus] | None
    latest_deployment: LatestDeployment | None
    # extensions of Steward, on request; the number of allocations is by client status
    steward_state: StateLine | UnsetType = UNSET
    steward_allocations: dict[str, int] | UnsetType = UNSET
