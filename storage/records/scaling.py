"""Scaling: events, the status of groups, and policies."""

from collections.abc import Mapping

from storage.records.base import Int64, Record, Uint64


class Scaling(Record, frozen=True, kw_only=True):
    """The limits for scaling a group or a task's resource, and the policy for an autoscaler."""

    id: str = ""
    type: str = ""
    target: dict[str, str] | None = None
    policy: dict[str, object] | None = None
    min: Int64 = 0
    max: Int64 = 0
    enabled: bool = True
    create_index: Uint64 = 0
    modify_index: Uint64 = 0


class ScalingEvent(Record, frozen=True, kw_only=True):
    """A scaling request: a new count of a group, or only a note, for which `count` is null."""

    time: int
    previous_count: int
    count: int | None = None
    message: str = ""
    error: bool = False
    meta: dict[str, object] | None = None
    eval_id: str | None = None
    create_index: int = 0


class GroupScale(Record, frozen=True, kw_only=True):
    """The counts of a group: desired, placed (without canaries), running, and by health."""

    desired: int
    placed: int
    running: int
    healthy: int
    unhealthy: int
    events: list[ScalingEvent] | None


class ScaleStatus(Record, frozen=True, kw_only=True):
    """The scaling status of a job's groups; `job_modify_index` is the modify index of the job."""

    job_id: str
    namespace: str
    job_create_index: int
    job_modify_index: int
    job_stopped: bool
    task_groups: Mapping[str, GroupScale]


class ScalingPolicyStub(Record, frozen=True, kw_only=True):
    """A scaling policy in a listing."""

    id: str
    enabled: bool
    type: str
    target: Mapping[str, str]
    create_index: int
    modify_index: int


class ScalingPolicy(ScalingPolicyStub, frozen=True, kw_only=True):
    """A scaling policy: the limits of a group's count, and settings for an autoscaler."""

    min: int
    max: int
    policy: dict[str, object] | None = None
