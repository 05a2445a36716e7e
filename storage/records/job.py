"""The job: what a user wants to run, and what is kept beside each of its versions."""

from collections.abc import Mapping
from enum import StrEnum

from storage.records.base import Int64, Record, Uint64
from storage.records.group import Migrate, ReschedulePolicy, TaskGroup, Update
from storage.records.scope import Affinity, Constraint, Spread


class JobType(StrEnum):
    """How a job is placed and when it counts as done."""

    SERVICE = "service"
    BATCH = "batch"
    SYSTEM = "system"
    SYSBATCH = "sysbatch"


class JobStatus(StrEnum):
    """What a job is doing, seen from its evaluations and allocations."""

    PENDING = "pending"
    RUNNING = "running"
    DEAD = "dead"


class Periodic(Record, frozen=True, kw_only=True):
    """When a job launches children by the clock."""

    enabled: bool = True
    spec: str = ""
    specs: list[str] | None = None
    spec_type: str = "cron"
    prohibit_overlap: bool = False
    time_zone: str = "UTC"


class Parameterized(Record, frozen=True, kw_only=True):
    """What a dispatch of this job must and may bring along."""

    payload: str = ""
    meta_required: list[str] | None = None
    meta_optional: list[str] | None = None


class MultiregionStrategy(Record, frozen=True, kw_only=True):
    """How a job moves from region to region."""

    max_parallel: int = 0
    on_failure: str = ""


class MultiregionRegion(Record, frozen=True, kw_only=True):
    """One region of a multi-region job."""

    name: str = ""
    count: int = 0
    datacenters: list[str] | None = None
    node_pool: str = ""
    meta: dict[str, str] | None = None


class Multiregion(Record, frozen=True, kw_only=True):
    """The regions a job runs in; only carried, one machine is one region."""

    strategy: MultiregionStrategy | None = None
    regions: list[MultiregionRegion] | None = None


class Link(Record, frozen=True, kw_only=True):
    """A link shown on the job's page."""

    label: str = ""
    url: str = ""


class JobUI(Record, frozen=True, kw_only=True):
    """What the web interface shows beside the job."""

    description: str = ""
    links: list[Link] | None = None


class VersionTag(Record, frozen=True, kw_only=True):
    """A name given to one version of a job."""

    name: str = ""
    description: str = ""
    tagged_time: Int64 = 0


class Job(Record, frozen=True, kw_only=True):
    """One version of a job with every default filled in.

    The last group of fields is not part of the definition: they say when this version came
    to be and what state it is in, and are kept beside the document (see `JobHead`).
    """

    id: str
    name: str = ""
    namespace: str = "default"
    region: str = "global"
    type: str = JobType.SERVICE
    priority: int = 50
    parent_id: str = ""
    all_at_once: bool = False
    datacenters: list[str] | None = None
    node_pool: str = "default"
    constraints: list[Constraint] | None = None
    affinities: list[Affinity] | None = None
    spreads: list[Spread] | None = None
    task_groups: list[TaskGroup] | None = None
    update: Update = Update()
    multiregion: Multiregion | None = None
    periodic: Periodic | None = None
    parameterized_job: Parameterized | None = None
    dispatched: bool = False
    dispatch_idempotency_token: str = ""
    payload: str | None = None
    meta: dict[str, str] | None = None
    ui: JobUI | None = None
    consul_namespace: str = ""
    secrets_namespace: str = ""
    service_token_id: str = ""
    stop: bool = False

    status: str = JobStatus.PENDING
    status_description: str = ""
    stable: bool = False
    version: Uint64 = 0
    version_tag: VersionTag | None = None
    submit_time: Int64 = 0
    create_index: Uint64 = 0
    modify_index: Uint64 = 0
    job_modify_index: Uint64 = 0

    def group(self, name: str) -> TaskGroup | None:
        """Return the task group of that name."""
        return next((group for group in self.task_groups or () if group.name == name), None)

    @property
    def launches_children(self) -> bool:
        """Tell whether the job itself never runs, but is the parent of jobs that do."""
        return self.periodic is not None or (
            self.parameterized_job is not None and not self.dispatched
        )


class SubmittedJob(Job, frozen=True, kw_only=True):
    """What a client may send as a job: blocks for all groups, and tokens that are not kept."""

    reschedule: ReschedulePolicy | None = None
    migrate: Migrate | None = None
    secrets_token: str = ""
    service_discovery_token: str = ""


class JobHead(Record, frozen=True, kw_only=True):
    """The fields of a `Job` that are kept beside its stored document, with the same names."""

    status: str
    status_description: str = ""
    stable: bool
    version: int
    version_tag: VersionTag | None
    submit_time: int
    create_index: int
    modify_index: int
    job_modify_index: int


class Submission(Record, frozen=True, kw_only=True):
    """The source text from which a version was made; kept for the six newest versions."""

    source: str = ""
    format: str = ""
    variable_flags: dict[str, str] | None = None
    variables: str = ""
    namespace: str = ""
    job_id: str = ""
    version: Uint64 = 0
    job_modify_index: Uint64 = 0


class GroupSummary(Record, frozen=True, kw_only=True):
    """How many allocations of a group are in each client status; `queued` are not placed yet."""

    queued: int = 0
    complete: int = 0
    failed: int = 0
    running: int = 0
    starting: int = 0
    lost: int = 0
    unknown: int = 0


class ChildSummary(Record, frozen=True, kw_only=True):
    """How many children of a periodic or parameterized job are in each status."""

    pending: int = 0
    running: int = 0
    dead: int = 0


class JobCounts(Record, frozen=True, kw_only=True):
    """The counts of a job, as they are stored.

    Those of its children and its two indexes are joined on when it is read.
    """

    job_id: str
    namespace: str
    summary: Mapping[str, GroupSummary]


class JobListing(Record, frozen=True, kw_only=True):
    """What a listing shows of a job and only a new version changes.

    Status, modify index and counts are joined on when it is read.
    """

    id: str
    parent_id: str
    name: str
    namespace: str
    datacenters: list[str] | None
    node_pool: str
    multiregion: Multiregion | None
    type: str
    priority: int
    periodic: bool
    parameterized_job: bool
    stop: bool
    status_description: str = ""
    create_index: int
    job_modify_index: int
    submit_time: int
