"""The deployment: the rollout of one job version."""

from collections.abc import Mapping
from enum import StrEnum

from storage.records.base import Record
from storage.records.times import ZERO_TIME, nanoseconds


class DeploymentStatus(StrEnum):
    """The status of a deployment."""

    RUNNING = "running"
    PAUSED = "paused"
    SUCCESSFUL = "successful"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE = frozenset({DeploymentStatus.RUNNING, DeploymentStatus.PAUSED})


class DeploymentGroup(Record, frozen=True, kw_only=True):
    """The progress of one group; `require_progress_by` is RFC 3339 text, or null."""

    auto_revert: bool = False
    auto_promote: bool = False
    progress_deadline: int = 0
    require_progress_by: str | None = None
    promoted: bool = False
    placed_canaries: list[str] | None = None
    desired_canaries: int = 0
    desired_total: int = 0
    placed_allocs: int = 0
    healthy_allocs: int = 0
    unhealthy_allocs: int = 0

    @property
    def progress_due(self) -> int | None:
        """Return the progress deadline in nanoseconds, None before the first placement."""
        text = self.require_progress_by
        return nanoseconds(text) if text and text != ZERO_TIME else None


class Deployment(Record, frozen=True, kw_only=True):
    """The rollout of a job version that replaces the previous one."""

    id: str
    namespace: str
    job_id: str
    job_version: int
    job_modify_index: int
    job_spec_modify_index: int
    job_create_index: int
    is_multiregion: bool = False
    task_groups: Mapping[str, DeploymentGroup]
    status: str
    status_description: str
    eval_priority: int
    create_index: int
    modify_index: int
    create_time: int
    modify_time: int

    @property
    def active(self) -> bool:
        """Return whether the deployment is active: not completed, failed or canceled."""
        return self.status in ACTIVE
