"""Response records of the command line, where the records of the store do not fit."""

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

from storage.records.allocation import TaskStateWithEvents
from storage.records.allocation_views import AllocationStub, AllocationView
from storage.records.base import Record
from storage.records.diff import JobDiff
from storage.records.evaluation import PlacementMetric, PlanAnnotations
from storage.records.flow import PlannedFlow
from storage.records.job import ChildSummary, GroupSummary
from storage.records.node import ClusterEngine, DriverLimit


class RegisterResult(Record, frozen=True, kw_only=True):
    """The response to a registration or a stop; `eval_id` is empty if there is no evaluation."""

    eval_id: str = ""
    job_modify_index: int = 0
    warnings: str = ""


class CalendarWritten(Record, frozen=True, kw_only=True):
    """The version of a calendar after a write."""

    version: int


class ValidateResult(Record, frozen=True, kw_only=True):
    """The errors and warnings of a job; both are empty if there are none."""

    error: str = ""
    warnings: str = ""
    next_periodic_launches: tuple[str, ...] = ()


class DispatchResult(Record, frozen=True, kw_only=True):
    """The response to a dispatch; no evaluation means that the idempotency token was used before."""

    dispatched_job_id: str = ""
    eval_id: str = ""


class DeploymentActionResult(Record, frozen=True, kw_only=True):
    """The response to a deployment action, such as a promotion or a pause."""

    eval_id: str = ""
    reverted_job_version: int | None = None


class JobSummaryCounts(Record, frozen=True, kw_only=True):
    """The number of allocations and child jobs of a job in each status."""

    summary: Mapping[str, GroupSummary] = {}
    children: ChildSummary | None = None


class JobListItem(Record, frozen=True, kw_only=True):
    """A job in a list."""

    id: str
    namespace: str
    parent_id: str = ""
    type: str
    priority: int
    status: str
    stop: bool = False
    periodic: bool = False
    parameterized_job: bool = False
    submit_time: int = 0
    job_summary: JobSummaryCounts = JobSummaryCounts()


class PlanResult(Record, frozen=True, kw_only=True):
    """The response to a plan."""

    annotations: PlanAnnotations
    failed_tg_allocs: Mapping[str, PlacementMetric] | None = None
    job_modify_index: int = 0
    diff: JobDiff | None = None
    next_periodic_launches: tuple[str, ...] = ()
    warnings: str = ""
    limits: Mapping[str, tuple[DriverLimit, ...]] = {}
    flow: PlannedFlow | None = None


class JobDefinitionResult(Record, frozen=True, kw_only=True):
    """The source of a job version; `format` is hcl2, hcl1 or json."""

    source: str
    format: str
    version: int


class JobVersionsResult(Record, frozen=True, kw_only=True):
    """All versions of a job, newest first, optionally with their differences."""

    versions: list[msgspec.Raw]
    diffs: list[JobDiff] | None = None


class AllocationItem(AllocationStub, frozen=True, kw_only=True):
    """An allocation in a list, with the events of its tasks."""

    task_states: Mapping[str, TaskStateWithEvents] | None = None


class AllocationDetail(AllocationView, frozen=True, kw_only=True):
    """A complete allocation, with the events of its tasks."""

    task_states: Mapping[str, TaskStateWithEvents] | None = None


class NodeListItem(Record, frozen=True, kw_only=True):
    """A node in a list."""

    id: str
    name: str
    datacenter: str
    node_class: str = ""
    node_pool: str = ""
    address: str = ""
    drain: bool = False
    scheduling_eligibility: str
    status: str
    status_description: str = ""
    engine: ClusterEngine | UnsetType = UNSET


class AgentSelf(msgspec.Struct, frozen=True):
    """The part of the agent's description that names its node."""

    stats: Mapping[str, Mapping[str, str]]


class LogFrame(Record, frozen=True, kw_only=True):
    """A chunk of a log. `offset` is the position in `file` after the chunk.

    Heartbeats have no data.
    """

    data: bytes = b""  # base64 on the wire
    file: str = ""
    offset: int = 0
