"""The input and the output of the scheduler. Neither has references to outside objects."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from storage.records.allocated_resources import ResourceHolder
from storage.records.allocation import Allocation
from storage.records.deployment import Deployment
from storage.records.evaluation import Evaluation, PlacementMetric, PlanAnnotations
from storage.records.flow import FlowRun, RunStep, SlotDemand
from storage.records.freeze import FreezeHold
from storage.records.job import Job
from storage.records.node import Node

if TYPE_CHECKING:
    from daemon.flow.calendars import Openings


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """A node and the resources of its non-terminal allocations, including those of this job.

    CPU is in MHz, memory and disk in MB; `allocations` is the number of these allocations.
    `listening` are ports on which processes listen now; dynamic ports avoid them if possible. Cores
    and devices of this job's allocations may be omitted, because the scheduler sees those
    allocations.
    """

    node: Node
    cpu: int = 0
    memory: int = 0
    disk: int = 0
    ports: frozenset[int] = frozenset()
    listening: frozenset[int] = frozenset()
    cores: frozenset[int] = frozenset()
    devices: frozenset[str] = frozenset()
    allocations: int = 0


class SettledAllocations(msgspec.Struct, frozen=True, kw_only=True):
    """The allocations of a batch group that have completed in the current version.

    `ranges` are the indexes of their names, as (first, last) in ascending order.
    """

    count: int = 0
    ranges: tuple[tuple[int, int], ...] = ()


class StepGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The slots of a step in its queues.

    `wanted` is the number of elements that hold slots or wait, and `held` the number that hold
    slots. `busy` is the number that were active, or about to begin, after the last decision.

    If `keeps` is true, the next element of the step takes over the slots of an ended element.
    Otherwise, the slots are released, because another step has waited longer for them.
    """

    wanted: int
    held: int
    busy: int
    keeps: bool


class StepFailure(msgspec.Struct, frozen=True):
    """How an element of a step failed: with an exit code, or with code 0 and another `cause`."""

    exit_code: int = 0
    cause: str = ""


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """A consistent state, as far as one evaluation needs it.

    `allocations` has at least all desired and all non-terminal allocations of the job. `ended`
    counts, for a batch job, the other stopped allocations of each group. A group in `settled` has
    completed allocations that are not in `allocations`. `versions` maps version numbers to
    definitions of the job: the current version, and the versions of all `allocations`. If the
    current version waits for the end of the active run, `job` is the version of the run, and
    `next_version` is the current version. `deployment` is the job's newest deployment. `run` is the
    newest run of a workflow, with its `steps`. `failures` has the newest failure of each step.
    `holders` are the non-terminal allocations of all jobs if preemption is possible, otherwise
    None.
    """

    index: int
    job: Job | None  # the deciding version, mostly the current version; None if the job was purged
    nodes: tuple[NodeState, ...]
    allocations: tuple[Allocation, ...] = ()
    ended: Mapping[str, int] = {}
    settled: Mapping[str, SettledAllocations] = {}
    versions: Mapping[int, Job] = {}
    deployment: Deployment | None = None
    next_version: Job | None = None
    run: FlowRun | None = None
    steps: tuple[RunStep, ...] = ()
    failures: Mapping[str, StepFailure] = {}
    approvals: Mapping[str, int] = {}  # approvals of the current attempt of each step with a gate
    outputs: Mapping[str, Mapping[str, str]] = {}  # outputs that waiting steps may use
    max_count: int = 0  # elements of a workflow, 0 for no limit
    slot: str = ""  # why no step may begin: its run waits for slots of a queue
    openings: "Mapping[str, Openings]" = {}  # open times by calendar, for steps not begun
    grants: Mapping[str, StepGrant] = {}  # slots of steps that hold slots of their queues, or wait
    freeze: FreezeHold | None = None  # the freeze that holds the runs of the job
    holders: tuple[ResourceHolder, ...] | None = None


class Eviction(msgspec.Struct, frozen=True):
    """A preempted allocation of another job, and the ID of the allocation that preempts it."""

    holder: ResourceHolder
    by: str


class RunChange(msgspec.Struct, frozen=True, kw_only=True):
    """A new or changed run with its changed steps.

    `before` is the stored run, and `known` are the stored steps. A new run takes over the outputs
    of the steps `taken_over` from the previous run.
    """

    run: FlowRun
    before: FlowRun | None
    steps: tuple[RunStep, ...] = ()
    known: Mapping[str, RunStep] = {}
    taken_over: tuple[str, ...] = ()


class FlowChange(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a plan to the runs of a job.

    The plan is stale if `seen` is no longer the newest run. A new run begins when the allocations
    in `awaits` (IDs) have ended. If all of them end before the plan is stored, the plan is
    also stale, because no later evaluation would begin the run. `demands` are the changed slot
    demands of steps. `freed` are the steps that no longer need slots.
    """

    seen: FlowRun | None
    runs: tuple[RunChange, ...]
    awaits: tuple[str, ...] = ()
    demands: tuple[SlotDemand, ...] = ()
    freed: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan. Objects are complete except for their indexes, which are set when they are stored.

    The plan is valid for `job_modify_index`; if the job's index differs, the plan is stale. It is
    also stale if a changed allocation or deployment has another modify index.
    """

    job_modify_index: int
    place: tuple[Allocation, ...] = ()  # new
    change: tuple[Allocation, ...] = ()  # existing: new desired state, version, health, or lost
    evict: tuple[Eviction, ...] = ()
    deployments: tuple[Deployment, ...] = ()  # new (create index 0) or changed
    evaluations: tuple[Evaluation, ...] = ()  # new: delayed reschedules
    displaced: tuple[Evaluation, ...] = ()  # new: jobs with preempted allocations
    blocked: Evaluation | None = None  # a new blocked evaluation, or the evaluation itself
    failed: Mapping[str, PlacementMetric] = {}  # group -> placement failure
    queued: Mapping[str, int] = {}  # group -> number of unplaced allocations
    annotations: PlanAnnotations = PlanAnnotations(desired_tg_updates={})
    deployment_id: str = ""  # the ID of the evaluation's deployment
    flow: FlowChange | None = None
    frozen: str = ""  # the ID of the freeze for whose end the job waits
