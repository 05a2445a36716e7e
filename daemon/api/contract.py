"""What each call takes and gives: the types that decode requests, and those that answers are made of.

The description of the API (`openapi.py`) is generated from this table and the route table. A call
that is not in it is described by its path alone.
"""

from collections.abc import Callable, Mapping
from enum import Enum

import msgspec
from msgspec import UNSET, UnsetType

from daemon.api import dispatch, history, jobs, parse, plan, progress, scaling, sessions
from daemon.api.cluster import (
    allocations,
    confinement,
    deployments,
    evaluations,
    namespaces,
    nodes,
    pools,
    statuses,
)
from daemon.jobs.dispatch import JobDispatchRequest
from daemon.jobs.evaluate import JobEvaluateRequest
from daemon.jobs.history import JobRevertRequest, JobStabilityRequest, TagVersionRequest
from daemon.jobs.register import JobRegisterRequest, JobValidateRequest
from daemon.jobs.scale import ScalingRequest
from storage.records.allocation import AllocatedResources, TaskStateWithEvents
from storage.records.base import Record
from storage.records.deployment import Deployment
from storage.records.diff import JobDiff
from storage.records.evaluation import Evaluation
from storage.records.explanation import Explanation
from storage.records.job import ChildSummary, Job, JobCounts, JobListing, Submission
from storage.records.namespace import Namespace
from storage.records.node import Node
from storage.records.notification import Notification
from storage.records.operation import ConfinementShown
from storage.records.periodic import Clock, Launch, Slot
from storage.records.pool_check import PoolCheck
from storage.records.scaling import ScaleStatus, ScalingPolicy, ScalingPolicyStub
from storage.records.statuses import JobStatusLine
from storage.records.views import AllocationStub, WholeAllocation


class Kind(Enum):
    """What may stand in a parameter of a query."""

    TEXT = "string"
    FLAG = "boolean"
    NUMBER = "integer"


TEXT, FLAG, NUMBER = Kind.TEXT, Kind.FLAG, Kind.NUMBER


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """What a call takes: the type of its body and the parameters of its query; and what it gives."""

    takes: object = None
    gives: object = None
    query: Mapping[str, Kind] = {}
    needs_body: bool = True


# ---- what is joined from several records where it is read -------------------------------------------


class JobSummary(JobCounts, frozen=True, kw_only=True):
    """The counts of a job, with the indexes of its making and of their last change."""

    children: ChildSummary
    create_index: int
    modify_index: int


class JobStub(JobListing, frozen=True, kw_only=True):
    """A job in a listing; `meta` only when it was asked for."""

    status: str
    modify_index: int
    job_summary: JobSummary
    meta: dict[str, str] | None = None


class Versions(Record, frozen=True, kw_only=True):
    """All versions of a job, newest first, and what each changed."""

    versions: list[Job]
    diffs: list[JobDiff] | None
    index: int
    last_contact: int
    known_leader: bool
    next_token: str


class AllocationLine(AllocationStub, frozen=True, kw_only=True):
    """An allocation in a listing; `task_states` and `allocated_resources` as they were asked for."""

    task_states: Mapping[str, TaskStateWithEvents] | None
    allocated_resources: AllocatedResources | UnsetType = UNSET


class ReadAllocation(WholeAllocation, frozen=True, kw_only=True):
    """An allocation with everything known about it, its job included."""

    job: Job  # type: ignore[assignment]  # the wire holds the whole job where the record holds text
    task_states: Mapping[str, TaskStateWithEvents] | None = None


class Registration(Record, frozen=True, kw_only=True):
    """A service that is registered while its allocation runs."""

    id: str
    service_name: str
    namespace: str
    node_id: str
    datacenter: str
    job_id: str
    alloc_id: str
    address: str
    port: int
    tags: list[str]
    create_index: int
    modify_index: int


# ---- the table ----------------------------------------------------------------------------------

_PAGES = {"per_page": NUMBER, "next_token": TEXT, "reverse": FLAG}
_LISTING = {"prefix": TEXT, "filter": TEXT, **_PAGES}
_ALLOCATIONS = {"resources": FLAG, "task_states": FLAG}

_REGISTER = Contract(takes=JobRegisterRequest, gives=jobs.JobRegisterResponse)
_STEERED = deployments.DeploymentUpdateResponse

CONTRACTS: Mapping[Callable[..., object], Contract] = {
    jobs.index: Contract(gives=list[JobStub], query={**_LISTING, "meta": FLAG}),
    jobs.register: _REGISTER,
    jobs.update: _REGISTER,
    jobs.validate: Contract(
        takes=JobValidateRequest, gives=jobs.JobValidateResponse, query={"launches": FLAG}
    ),
    parse.parse: Contract(takes=parse.JobsParseRequest, gives=dict[str, object]),
    plan.plan: Contract(
        takes=plan.JobPlanRequest, gives=plan.JobPlanResponse, query={"launches": FLAG}
    ),
    jobs.read: Contract(gives=Job),
    jobs.stop: Contract(
        gives=jobs.JobDeregisterResponse,
        query={
            "purge": FLAG,
            "global": FLAG,
            "eval_priority": NUMBER,
            "no_shutdown_delay": FLAG,
        },
    ),
    dispatch.coming: Contract(gives=list[Launch], query={"per_page": NUMBER}),
    statuses.index: Contract(
        takes=statuses.JobStatusesRequest,
        gives=list[JobStatusLine],
        query={
            **_LISTING,
            "include_children": FLAG,
            "contains": TEXT,
            "type": TEXT,
            "status": TEXT,
        },
    ),
    history.list_versions: Contract(
        gives=Versions,
        query={"diffs": FLAG, "diff_version": NUMBER, "diff_tag": TEXT, "filter": TEXT},
    ),
    history.revert: Contract(takes=JobRevertRequest, gives=jobs.JobRegisterResponse),
    history.stable: Contract(takes=JobStabilityRequest, gives=history.JobStabilityResponse),
    history.tag: Contract(takes=TagVersionRequest, gives=history.JobTagResponse),
    history.untag: Contract(gives=history.JobTagResponse),
    history.submission: Contract(gives=Submission, query={"version": NUMBER}),
    progress.summary: Contract(gives=JobSummary),
    progress.explain: Contract(gives=Explanation),
    pools.check: Contract(gives=PoolCheck),
    progress.job_allocations: Contract(
        gives=list[AllocationLine], query={"all": FLAG, "filter": TEXT, **_ALLOCATIONS}
    ),
    progress.job_evaluations: Contract(gives=list[Evaluation], query={"filter": TEXT}),
    progress.job_deployments: Contract(gives=list[Deployment], query={"all": FLAG, "filter": TEXT}),
    progress.latest_deployment: Contract(gives=Deployment | None),
    progress.services: Contract(gives=list[Registration]),
    progress.actions: Contract(gives=list[progress.JobAction]),
    sessions.run_action: Contract(
        query={
            "action": TEXT,
            "alloc_id": TEXT,
            "allocID": TEXT,
            "task": TEXT,
            "tty": FLAG,
            "ws_handshake": FLAG,
        }
    ),
    progress.evaluate: Contract(
        takes=JobEvaluateRequest, gives=jobs.JobRegisterResponse, needs_body=False
    ),
    dispatch.dispatch: Contract(
        takes=JobDispatchRequest,
        gives=dispatch.JobDispatchResponse,
        query={"idempotency_token": TEXT, "IdempotencyToken": TEXT},
    ),
    dispatch.dispatch_payload: Contract(gives=dispatch.JobDispatchResponse),
    dispatch.force: Contract(gives=dispatch.PeriodicForceResponse),
    dispatch.slots: Contract(gives=list[Slot]),
    dispatch.told: Contract(gives=list[Notification]),
    dispatch.clock: Contract(gives=Clock),
    dispatch.pause: Contract(gives=dispatch.PeriodicPauseResponse),
    dispatch.resume: Contract(gives=dispatch.PeriodicPauseResponse),
    scaling.status: Contract(gives=ScaleStatus),
    scaling.scale: Contract(takes=ScalingRequest, gives=jobs.JobRegisterResponse),
    scaling.policies: Contract(
        gives=list[ScalingPolicyStub], query={"prefix": TEXT, "job": TEXT, "type": TEXT}
    ),
    scaling.policy: Contract(gives=ScalingPolicy),
    allocations.index: Contract(gives=list[AllocationLine], query={**_LISTING, **_ALLOCATIONS}),
    allocations.read: Contract(gives=ReadAllocation),
    allocations.stop: Contract(
        gives=allocations.AllocStopResponse, query={"no_shutdown_delay": FLAG}
    ),
    allocations.services: Contract(gives=list[Registration]),
    evaluations.index: Contract(
        gives=list[Evaluation], query={**_LISTING, "job": TEXT, "status": TEXT}
    ),
    evaluations.remove: Contract(takes=evaluations.EvalDeleteRequest),
    evaluations.count: Contract(gives=evaluations.CountResponse, query={"filter": TEXT}),
    evaluations.read: Contract(gives=Evaluation),
    evaluations.placed: Contract(gives=list[AllocationLine]),
    deployments.index: Contract(gives=list[Deployment], query=_LISTING),
    deployments.read: Contract(gives=Deployment),
    deployments.placed: Contract(gives=list[AllocationLine]),
    deployments.promote: Contract(takes=deployments.DeploymentPromoteRequest, gives=_STEERED),
    deployments.fail: Contract(gives=_STEERED),
    deployments.pause: Contract(takes=deployments.DeploymentPauseRequest, gives=_STEERED),
    deployments.unblock: Contract(takes=deployments.DeploymentUnblockRequest, gives=_STEERED),
    deployments.allocation_health: Contract(
        takes=deployments.DeploymentAllocHealthRequest, gives=_STEERED
    ),
    confinement.show: Contract(gives=ConfinementShown),
    nodes.index: Contract(gives=list[nodes.NodeStub], query={**_LISTING, "resources": FLAG}),
    nodes.read: Contract(gives=Node),
    namespaces.index: Contract(gives=list[Namespace], query={"prefix": TEXT, "filter": TEXT}),
    namespaces.read: Contract(gives=Namespace),
    namespaces.create: Contract(takes=Namespace),
    namespaces.update: Contract(takes=Namespace),
}
