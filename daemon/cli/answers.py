"""What the command line reads of the daemon's answers, where the nouns themselves do not fit."""

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

from storage.records.allocation import TaskStateWithEvents
from storage.records.base import Record
from storage.records.diff import JobDiff
from storage.records.evaluation import PlacementMetric, PlanAnnotations
from storage.records.job import ChildSummary, GroupSummary
from storage.records.node import DriverLimit, Engine
from storage.records.views import AllocationStub, WholeAllocation


class Registered(Record, frozen=True, kw_only=True):
    """The answer to a registration or a stop; without an evaluation its id is empty."""

    eval_id: str = ""
    job_modify_index: int = 0
    warnings: str = ""


class Validated(Record, frozen=True, kw_only=True):
    """What is wrong or dubious with a job; both are empty when nothing is."""

    error: str = ""
    warnings: str = ""
    next_periodic_launches: tuple[str, ...] = ()


class Dispatched(Record, frozen=True, kw_only=True):
    """The answer to a dispatch; without an evaluation an earlier one had the same token."""

    dispatched_job_id: str = ""
    eval_id: str = ""


class Steered(Record, frozen=True, kw_only=True):
    """The answer to a promotion, a pause and their like."""

    eval_id: str = ""
    reverted_job_version: int | None = None


class Counts(Record, frozen=True, kw_only=True):
    """How many allocations and children of a job are in each status."""

    summary: Mapping[str, GroupSummary] = {}
    children: ChildSummary | None = None


class JobLine(Record, frozen=True, kw_only=True):
    """A job in a listing."""

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
    job_summary: Counts = Counts()


class Planned(Record, frozen=True, kw_only=True):
    """The answer to a plan."""

    annotations: PlanAnnotations
    failed_tg_allocs: Mapping[str, PlacementMetric] | None = None
    job_modify_index: int = 0
    diff: JobDiff | None = None
    next_periodic_launches: tuple[str, ...] = ()
    warnings: str = ""
    limits: Mapping[str, tuple[DriverLimit, ...]] = {}


class Versions(Record, frozen=True, kw_only=True):
    """All versions of a job, newest first, and if asked for what each changed."""

    versions: list[msgspec.Raw]
    diffs: list[JobDiff] | None = None


class AllocationLine(AllocationStub, frozen=True, kw_only=True):
    """An allocation in a listing, with the events of its tasks."""

    task_states: Mapping[str, TaskStateWithEvents] | None = None


class ShownAllocation(WholeAllocation, frozen=True, kw_only=True):
    """An allocation with everything known about it, with the events of its tasks."""

    task_states: Mapping[str, TaskStateWithEvents] | None = None


class NodeLine(Record, frozen=True, kw_only=True):
    """A node in a listing."""

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
    engine: Engine | UnsetType = UNSET


class AgentSelf(msgspec.Struct, frozen=True):
    """What the daemon says of itself, as far as it names its node."""

    stats: Mapping[str, Mapping[str, str]]


class LogFrame(Record, frozen=True, kw_only=True):
    """A piece of a log; `offset` is the position in `file` behind it. Heartbeats are empty."""

    data: bytes = b""  # base64 on the wire
    file: str = ""
    offset: int = 0
