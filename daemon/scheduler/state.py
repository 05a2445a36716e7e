"""What the scheduler is given, and what it gives back. Neither refers to anything outside."""

from collections.abc import Mapping

import msgspec

from storage.records.allocation import Allocation
from storage.records.deployment import Deployment
from storage.records.evaluation import Evaluation, PlacementMetric, PlanAnnotations
from storage.records.holder import Holder
from storage.records.job import Job
from storage.records.node import Node


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """A node and what allocations that have not ended hold on it, those of this job included.

    CPU in MHz, memory and disk in MB; `allocations` is how many they are. On the ports `listening`
    somebody is at the moment: no dynamic one is taken among them while there are others. Whole cores and
    devices of this job's allocations may be left out: the scheduler sees them there.
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


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """One moment, as far as one evaluation needs it.

    `allocations` are those of the job, at least all that are wanted or have not ended; `ended`: of
    a batch job, how many others each group has, which were stopped and are only counted.
    `versions` holds the job as it is in each version that one of them runs, and the current one.
    `deployment` is the newest of the job. `holders` is everything that has not ended, of all jobs,
    when others may have to make room for this one; None when nobody has to.
    """

    index: int
    job: Job | None  # the current version; None when it was purged
    nodes: tuple[NodeState, ...]
    allocations: tuple[Allocation, ...] = ()
    ended: Mapping[str, int] = {}
    versions: Mapping[int, Job] = {}
    deployment: Deployment | None = None
    holders: tuple[Holder, ...] | None = None


class Eviction(msgspec.Struct, frozen=True):
    """An allocation of another job that makes room, and the id of the new one that it makes room for."""

    holder: Holder
    by: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What shall change. Objects are complete but for their indexes, which storing them gives.

    `job_modify_index` is the one the plan was made for: when the job's differs, the plan is
    stale. So it is when a changed allocation or deployment has another modify index by now.
    """

    job_modify_index: int
    place: tuple[Allocation, ...] = ()  # new
    change: tuple[Allocation, ...] = ()  # existing: new desired half, version, health or lost
    evict: tuple[Eviction, ...] = ()
    deployments: tuple[Deployment, ...] = ()  # new (create index 0) or changed
    evaluations: tuple[Evaluation, ...] = ()  # new: wait for delayed reschedules
    displaced: tuple[Evaluation, ...] = ()  # new: of the jobs whose allocations make room
    blocked: Evaluation | None = None  # waits for room: new, or the evaluation itself once more
    failed: Mapping[str, PlacementMetric] = {}  # group -> why some of it was not placed
    queued: Mapping[str, int] = {}  # group -> how many were not placed
    annotations: PlanAnnotations = PlanAnnotations(desired_tg_updates={})
    deployment_id: str = ""  # of the deployment the evaluation works for
