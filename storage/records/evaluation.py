"""The evaluation: a request to process a job, and the placement metrics."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from storage.records.base import Record, SparseRecord
from storage.records.task import Resources


class EvalStatus(StrEnum):
    """The status of an evaluation."""

    PENDING = "pending"
    BLOCKED = "blocked"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELED = "canceled"


class Trigger(StrEnum):
    """The trigger of an evaluation."""

    JOB_REGISTER = "job-register"
    JOB_DEREGISTER = "job-deregister"
    PERIODIC_JOB = "periodic-job"
    JOB_SCALING = "job-scaling"
    NODE_UPDATE = "node-update"
    NODE_DRAIN = "node-drain"
    ALLOC_STOP = "alloc-stop"
    ALLOC_FAILURE = "alloc-failure"
    ALLOC_RESCHEDULE = "alloc-reschedule"
    DEPLOYMENT_WATCHER = "deployment-watcher"
    QUEUED_ALLOCS = "queued-allocs"
    PREEMPTION = "preemption"
    RUN_STEP = "run-step"  # Steward's own: a step of a workflow may have ended


class NodeScore(Record, frozen=True, kw_only=True):
    """The scores of a node; `norm_score` is the mean of `scores`."""

    node_id: str
    norm_score: float
    scores: Mapping[str, float]


class PlacementMetric(Record, frozen=True, kw_only=True):
    """The placement metrics of a group: the numbers of feasible, filtered and exhausted nodes."""

    nodes_evaluated: int = 0
    nodes_filtered: int = 0
    nodes_in_pool: int = 0
    nodes_available: Mapping[str, int] | None = None
    node_pool: str = "default"
    class_filtered: Mapping[str, int] | None = None
    constraint_filtered: Mapping[str, int] | None = None
    nodes_exhausted: int = 0
    class_exhausted: Mapping[str, int] | None = None
    dimension_exhausted: Mapping[str, int] | None = None
    quota_exhausted: list[str] | None = None
    resources_exhausted: Mapping[str, Resources] | None = None
    scores: Mapping[str, float] | None = None
    score_meta_data: list[NodeScore] | None = None
    allocation_time: int = 0
    coalesced_failures: int = 0


class DesiredUpdates(Record, frozen=True, kw_only=True):
    """The number of a group's allocations for each action of a plan, such as `place` or `stop`."""

    ignore: int = 0
    place: int = 0
    migrate: int = 0
    stop: int = 0
    in_place_update: int = 0
    destructive_update: int = 0
    canary: int = 0
    preemptions: int = 0
    disconnect: int = 0
    reconnect: int = 0
    reschedule_now: int = 0
    reschedule_later: int = 0


class PlanAnnotations(Record, frozen=True, kw_only=True):
    """The changes of a plan, group by group."""

    desired_tg_updates: Mapping[str, DesiredUpdates]
    preempted_allocs: list[msgspec.Raw] | None = None  # in listing form; only for dry runs


class Evaluation(SparseRecord, frozen=True, kw_only=True):
    """A request to process a job; the scheduler's only input besides the state.

    Empty fields are absent on the wire, as Nomad's clients expect. Times are in nanoseconds, except
    for `wait_until`, which is RFC 3339 text. The evaluation is not processed before this time.
    """

    id: str
    namespace: str
    priority: int
    type: str
    triggered_by: str
    job_id: str
    status: str
    create_time: int
    modify_time: int
    create_index: int = 0
    modify_index: int = 0
    job_modify_index: int = 0
    node_id: str = ""
    node_modify_index: int = 0
    deployment_id: str = ""
    status_description: str = ""
    wait: int = 0
    wait_until: str = ""
    next_eval: str = ""
    previous_eval: str = ""
    blocked_eval: str = ""
    related_evals: list[str] | None = None
    failed_tg_allocs: Mapping[str, PlacementMetric] | None = None
    class_eligibility: Mapping[str, bool] | None = None
    escaped_computed_class: bool = False
    quota_limit_reached: str = ""
    annotate_plan: bool = False
    plan_annotations: PlanAnnotations | None = None
    queued_allocations: Mapping[str, int] | None = None
    snapshot_index: int = 0
