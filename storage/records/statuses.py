"""A job as dashboards show it: with its allocations, children and newest deployment, in short."""

from storage.records.base import Record


class AllocationHealth(Record, frozen=True, kw_only=True):
    """Whether an allocation is on trial, and whether it is well."""

    canary: bool = False
    healthy: bool | None = None


class AllocationStatus(Record, frozen=True, kw_only=True):
    """An allocation in short."""

    id: str
    group: str
    client_status: str
    node_id: str
    job_version: int
    followup_eval_id: str
    has_paused_task: bool = False
    deployment_status: AllocationHealth


class LatestDeployment(Record, frozen=True, kw_only=True):
    """The newest deployment of a job in short."""

    id: str
    is_active: bool
    job_version: int
    status: str
    status_description: str
    all_auto_promote: bool
    requires_promotion: bool


class JobStatusLine(Record, frozen=True, kw_only=True):
    """A job in short; `group_count_sum` is how many allocations are wanted of all groups."""

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
