"""The job: its definition, and the data stored with each of its versions."""

from collections.abc import Mapping
from enum import StrEnum

from storage.records.base import Int64, Record, Uint64
from storage.records.constraints import Affinity, Constraint, Spread
from storage.records.group import Migrate, ReschedulePolicy, TaskGroup, Update


class JobType(StrEnum):
    """The type of a job, which determines its placement and its completion."""

    SERVICE = "service"
    BATCH = "batch"
    SYSTEM = "system"
    SYSBATCH = "sysbatch"


class JobStatus(StrEnum):
    """The status of a job, derived from its evaluations and allocations."""

    PENDING = "pending"
    RUNNING = "running"
    DEAD = "dead"


class Periodic(Record, frozen=True, kw_only=True):
    """The schedule of a periodic job."""

    enabled: bool = True
    spec: str = ""
    specs: list[str] | None = None
    spec_type: str = "cron"
    prohibit_overlap: bool = False
    time_zone: str = "UTC"


class Parameterized(Record, frozen=True, kw_only=True):
    """The required and permitted inputs of a dispatch."""

    payload: str = ""
    meta_required: list[str] | None = None
    meta_optional: list[str] | None = None


class MultiregionStrategy(Record, frozen=True, kw_only=True):
    """How a job is rolled out across regions."""

    max_parallel: int = 0
    on_failure: str = ""


class MultiregionRegion(Record, frozen=True, kw_only=True):
    """One region of a multiregion job."""

    name: str = ""
    count: int = 0
    datacenters: list[str] | None = None
    node_pool: str = ""
    meta: dict[str, str] | None = None


class Multiregion(Record, frozen=True, kw_only=True):
    """The regions of a job; stored without effect, because there is one region."""

    strategy: MultiregionStrategy | None = None
    regions: list[MultiregionRegion] | None = None


class Link(Record, frozen=True, kw_only=True):
    """A link on the job's page."""

    label: str = ""
    url: str = ""


class JobUI(Record, frozen=True, kw_only=True):
    """The additions of a job to its page in the web UI."""

    description: str = ""
    links: list[Link] | None = None


class VersionTag(Record, frozen=True, kw_only=True):
    """A tag of a job version."""

    name: str = ""
    description: str = ""
    tagged_time: Int64 = 0


class Job(Record, frozen=True, kw_only=True):
    """One version of a job with all defaults.

    The last group of fields is not part of the definition. These fields describe the version and
    its state, and are stored next to the document (see `JobHead`).
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

    def groups_by_name(self) -> dict[str, TaskGroup]:
        """Return all task groups by name.

        For many lookups, this is faster than `group`, because a job may have thousands of groups.
        """
        return {group.name: group for group in self.task_groups or ()}

    def group(self, name: str) -> TaskGroup | None:
        """Return a task group by name, or None."""
        return next((group for group in self.task_groups or () if group.name == name), None)

    @property
    def is_parameterized(self) -> bool:
        """Return whether the job runs only as dispatched children; a child is not parameterized."""
        return self.parameterized_job is not None and not self.dispatched

    @property
    def launches_children(self) -> bool:
        """Return whether the job is periodic or parameterized, so that only its children run."""
        return self.periodic is not None or self.is_parameterized


class SubmittedJob(Job, frozen=True, kw_only=True):
    """A job as submitted: with shortcut blocks for all groups, and tokens that are not stored."""

    reschedule: ReschedulePolicy | None = None
    migrate: Migrate | None = None
    secrets_token: str = ""
    service_discovery_token: str = ""


class JobHead(Record, frozen=True, kw_only=True):
    """The fields of a `Job` that are stored next to its document, with the same names."""

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
    """The source text of a job version. It is stored for the six newest versions of a job."""

    source: str = ""
    format: str = ""
    variable_flags: dict[str, str] | None = None
    variables: str = ""
    namespace: str = ""
    job_id: str = ""
    version: Uint64 = 0
    job_modify_index: Uint64 = 0


class GroupSummary(Record, frozen=True, kw_only=True):
    """A group's number of allocations by client status; `queued` counts unplaced allocations."""

    queued: int = 0
    complete: int = 0
    failed: int = 0
    running: int = 0
    starting: int = 0
    lost: int = 0
    unknown: int = 0


class ChildSummary(Record, frozen=True, kw_only=True):
    """The number of children by status."""

    pending: int = 0
    running: int = 0
    dead: int = 0


class JobCounts(Record, frozen=True, kw_only=True):
    """The counts of a job, as stored.

    Queries add the counts of children and the two indexes, which are stored elsewhere.
    """

    job_id: str
    namespace: str
    summary: Mapping[str, GroupSummary]


class JobListing(Record, frozen=True, kw_only=True):
    """The fields of a listed job that change only with a new version.

    Queries add the status, the modify index and the counts, which are stored elsewhere.
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
