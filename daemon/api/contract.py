"""Request and response types of each call, with its query parameters.

The description of the API (`openapi.py`) is generated from this table and the route table. For a
call that is not in this table, the description has only the path.
"""

from collections.abc import Callable, Mapping
from enum import Enum

import msgspec
from msgspec import UNSET, UnsetType

from daemon.api import (
    bulk_dispatch,
    calendars,
    concurrency,
    dispatch,
    exec_sessions,
    flows,
    freezes,
    job_status,
    job_versions,
    jobs,
    parse,
    payload_files,
    plan,
    scaling,
    triggers,
)
from daemon.api.cluster import (
    allocations,
    confinement,
    deployments,
    evaluations,
    events,
    files,
    kept_files,
    logs,
    namespaces,
    nodes,
    notify,
    pools,
    statuses,
    usage_history,
    variables,
)
from daemon.jobs.dispatch import JobDispatchRequest
from daemon.jobs.evaluate import JobEvaluateRequest
from daemon.jobs.freezes import FreezeRequest
from daemon.jobs.register import JobRegisterRequest, JobValidateRequest
from daemon.jobs.scale import ScalingRequest
from daemon.jobs.steer_run import RunActRequest, RunActResponse
from daemon.jobs.version_history import JobRevertRequest, JobStabilityRequest, TagVersionRequest
from storage.records.allocation import AllocatedResources, TaskStateWithEvents
from storage.records.allocation_views import AllocationStub, AllocationView
from storage.records.base import Record
from storage.records.bulk_dispatch import BulkDispatchAnswer
from storage.records.calendar import (
    Calendar,
    CalendarDays,
    CalendarImport,
    CalendarListing,
    CalendarVersion,
)
from storage.records.concurrency import QueueLine, QueueView
from storage.records.deployment import Deployment
from storage.records.diff import JobDiff
from storage.records.evaluation import Evaluation
from storage.records.explanation import Explanation
from storage.records.flow import FlowGraph, FlowRun, FlowRunView, StepOutputs
from storage.records.freeze import Freeze
from storage.records.job import ChildSummary, Job, JobCounts, JobListing, Submission
from storage.records.kept_file import KeptFile
from storage.records.namespace import Namespace
from storage.records.node import HostedTask, Node
from storage.records.notification import Notification, ReceiverResult, ReceiverTest
from storage.records.operator_api import ConfinementShown
from storage.records.payload_file import UploadState
from storage.records.periodic import PeriodicSchedule, ScheduledLaunch, Slot
from storage.records.pool_check import PoolCheck
from storage.records.scaling import ScaleStatus, ScalingPolicy, ScalingPolicyStub
from storage.records.state import Run, RunCalendar, StateLine
from storage.records.statuses import JobStatusLine
from storage.records.trigger import JobLinks, JobTrigger
from storage.records.usage_history import UsageHistory
from storage.records.variable import SubmittedVariable, Variable, VariableMetadata


class ParameterType(Enum):
    """The type of a query parameter."""

    TEXT = "string"
    FLAG = "boolean"
    NUMBER = "integer"


TEXT, FLAG, NUMBER = ParameterType.TEXT, ParameterType.FLAG, ParameterType.NUMBER


class EndpointSchema(msgspec.Struct, frozen=True, kw_only=True):
    """The request body, the query parameters and the response of a call.

    With `is_lines`, the request body and the response body have one JSON document per line.
    """

    takes: object = None
    gives: object = None
    query: Mapping[str, ParameterType] = {}
    needs_body: bool = True
    is_lines: bool = False


# --- records joined from several tables ---


class JobSummary(JobCounts, frozen=True, kw_only=True):
    """The counts of a job's allocations and children, with their create and modify index."""

    children: ChildSummary
    create_index: int
    modify_index: int


class JobStub(JobListing, frozen=True, kw_only=True):
    """A job in a list. `meta` is set only on request."""

    status: str
    modify_index: int
    job_summary: JobSummary
    meta: dict[str, str] | None = None


class JobVersionsBody(Record, frozen=True, kw_only=True):
    """All versions of a job, newest first, and their differences."""

    versions: list[Job]
    diffs: list[JobDiff] | None
    index: int
    last_contact: int
    known_leader: bool
    next_token: str


class AllocationListItem(AllocationStub, frozen=True, kw_only=True):
    """An allocation in a list. Query parameters control `task_states` and `allocated_resources`."""

    task_states: Mapping[str, TaskStateWithEvents] | None
    allocated_resources: AllocatedResources | UnsetType = UNSET


class AllocationResponse(AllocationView, frozen=True, kw_only=True):
    """An allocation with all its fields, including its job."""

    job: Job  # type: ignore[assignment]  # the wire holds the whole job where the record holds text
    task_states: Mapping[str, TaskStateWithEvents] | None = None


class JobRegistrationBody(Record, frozen=True, kw_only=True):
    """An instance of a service. It is registered as long as its allocation runs."""

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


class EventBody(Record, frozen=True, kw_only=True):
    """A change. The payload has one field, named after the topic, which contains the object."""

    topic: str
    type: str
    key: str
    namespace: str
    filter_keys: list[str] | None
    index: int
    payload: dict[str, object]


class EventsOfWrite(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the event stream: the events of one write, or a heartbeat without events."""

    index: int = 0
    events: tuple[EventBody, ...] = ()


# --- the table ---
_PAGES = {"per_page": NUMBER, "next_token": TEXT, "reverse": FLAG}
_LISTING = {"prefix": TEXT, "filter": TEXT, **_PAGES}
_HISTORY = {"from": TEXT, "to": TEXT, "step": TEXT}
_STREAM = {"follow": FLAG, "origin": TEXT, "offset": NUMBER}
_ALLOCATIONS = {"resources": FLAG, "task_states": FLAG}

_REGISTER = EndpointSchema(takes=JobRegisterRequest, gives=jobs.JobRegisterResponse)
_STEERED = deployments.DeploymentUpdateResponse

CONTRACTS: Mapping[Callable[..., object], EndpointSchema] = {
    jobs.index: EndpointSchema(gives=list[JobStub], query={**_LISTING, "meta": FLAG}),
    jobs.register: _REGISTER,
    jobs.update: _REGISTER,
    jobs.examine: EndpointSchema(takes=JobValidateRequest, gives=jobs.JobExamination),
    jobs.validate: EndpointSchema(
        takes=JobValidateRequest, gives=jobs.JobValidateResponse, query={"launches": FLAG}
    ),
    parse.parse: EndpointSchema(takes=parse.JobsParseRequest, gives=dict[str, object]),
    calendars.index: EndpointSchema(gives=list[CalendarListing], query=_LISTING),
    calendars.read: EndpointSchema(gives=Calendar, query={"version": NUMBER}),
    calendars.write: EndpointSchema(
        takes=Calendar, gives=calendars.CalendarResponse, query={"cas": NUMBER}
    ),
    calendars.remove: EndpointSchema(query={"cas": NUMBER}),
    calendars.days: EndpointSchema(gives=CalendarDays, query={"from": TEXT, "to": TEXT}),
    calendars.list_versions: EndpointSchema(gives=list[CalendarVersion], query=_PAGES),
    calendars.import_file: EndpointSchema(
        gives=CalendarImport, query={"first_year": NUMBER, "last_year": NUMBER}
    ),
    flows.draw: EndpointSchema(takes=JobValidateRequest, gives=FlowGraph),
    flows.list_runs: EndpointSchema(
        gives=list[FlowRun], query={**_LISTING, "job": TEXT, "status": TEXT}
    ),
    flows.read_run: EndpointSchema(
        gives=FlowRunView,
        query={"number": NUMBER, "elements": TEXT, **_PAGES},
    ),
    flows.read_outputs: EndpointSchema(
        gives=list[StepOutputs], query={"number": NUMBER, "step": TEXT}
    ),
    **{
        act: EndpointSchema(takes=RunActRequest, gives=RunActResponse, needs_body=False)
        for act in (
            *(flows.cancel, flows.skip, flows.accept, flows.rerun),
            *(flows.approve, flows.reject, flows.run_step),
        )
    },
    flows.graph_of_job: EndpointSchema(gives=FlowGraph, query={"version": NUMBER}),
    triggers.list_triggers: EndpointSchema(gives=list[JobTrigger], query=_PAGES),
    triggers.show_links: EndpointSchema(gives=JobLinks),
    freezes.index: EndpointSchema(gives=list[Freeze], query={**_LISTING, "active": FLAG}),
    freezes.make: EndpointSchema(takes=FreezeRequest, gives=freezes.FreezeResponse),
    freezes.thaw: EndpointSchema(gives=freezes.FreezeResponse),
    concurrency.index: EndpointSchema(gives=list[QueueLine], query=_LISTING),
    concurrency.read: EndpointSchema(gives=QueueView),
    concurrency.put: EndpointSchema(
        takes=concurrency.QueueRequest, gives=concurrency.QueueResponse
    ),
    concurrency.delete: EndpointSchema(gives=concurrency.QueueResponse),
    plan.plan: EndpointSchema(
        takes=plan.JobPlanRequest, gives=plan.JobPlanResponse, query={"launches": FLAG}
    ),
    jobs.read: EndpointSchema(gives=Job),
    jobs.deregister_job: EndpointSchema(
        gives=jobs.JobDeregisterResponse,
        query={
            "purge": FLAG,
            "global": FLAG,
            "eval_priority": NUMBER,
            "no_shutdown_delay": FLAG,
        },
    ),
    dispatch.upcoming_launches: EndpointSchema(gives=list[ScheduledLaunch], query=_PAGES),
    statuses.index: EndpointSchema(
        takes=statuses.JobStatusesRequest,
        gives=list[JobStatusLine],
        query={
            **_LISTING,
            "include_children": FLAG,
            "contains": TEXT,
            "type": TEXT,
            "status": TEXT,
            "state": TEXT,
            "states": FLAG,
            "strip": FLAG,
            "counts": FLAG,
            "sort": TEXT,
        },
    ),
    job_versions.list_versions: EndpointSchema(
        gives=JobVersionsBody,
        query={
            "diffs": FLAG,
            "diff_version": NUMBER,
            "diff_tag": TEXT,
            "filter": TEXT,
            "per_page": NUMBER,
            "next_token": TEXT,
        },
    ),
    job_versions.revert: EndpointSchema(takes=JobRevertRequest, gives=jobs.JobRegisterResponse),
    job_versions.set_stable: EndpointSchema(
        takes=JobStabilityRequest, gives=job_versions.JobStabilityResponse
    ),
    job_versions.tag: EndpointSchema(takes=TagVersionRequest, gives=job_versions.JobTagResponse),
    job_versions.untag: EndpointSchema(gives=job_versions.JobTagResponse),
    job_versions.submission: EndpointSchema(gives=Submission, query={"version": NUMBER}),
    job_status.summary: EndpointSchema(gives=JobSummary),
    job_status.explain: EndpointSchema(gives=Explanation),
    job_status.state: EndpointSchema(gives=StateLine),
    job_status.runs: EndpointSchema(
        gives=list[Run], query={"per_page": NUMBER, "day": TEXT, "result": TEXT}
    ),
    job_status.calendar: EndpointSchema(gives=RunCalendar),
    pools.check: EndpointSchema(gives=PoolCheck),
    usage_history.of_node: EndpointSchema(gives=UsageHistory, query=_HISTORY),
    usage_history.of_job: EndpointSchema(gives=UsageHistory, query=_HISTORY),
    usage_history.of_allocation: EndpointSchema(gives=UsageHistory, query=_HISTORY),
    job_status.job_allocations: EndpointSchema(
        gives=list[AllocationListItem], query={"all": FLAG, "filter": TEXT, **_ALLOCATIONS}
    ),
    job_status.job_evaluations: EndpointSchema(gives=list[Evaluation], query={"filter": TEXT}),
    job_status.job_deployments: EndpointSchema(
        gives=list[Deployment], query={"all": FLAG, "filter": TEXT}
    ),
    job_status.newest_deployment: EndpointSchema(gives=Deployment | None),
    job_status.services: EndpointSchema(gives=list[JobRegistrationBody], query=_PAGES),
    job_status.actions: EndpointSchema(gives=list[job_status.JobAction]),
    exec_sessions.execute: EndpointSchema(
        query={"task": TEXT, "command": TEXT, "tty": FLAG, "ws_handshake": FLAG}
    ),
    exec_sessions.run_action: EndpointSchema(
        query={
            "action": TEXT,
            "alloc_id": TEXT,
            "allocID": TEXT,
            "task": TEXT,
            "tty": FLAG,
            "ws_handshake": FLAG,
        }
    ),
    job_status.evaluate: EndpointSchema(
        takes=JobEvaluateRequest, gives=jobs.JobRegisterResponse, needs_body=False
    ),
    dispatch.dispatch: EndpointSchema(
        takes=JobDispatchRequest,
        gives=dispatch.JobDispatchResponse,
        query={"idempotency_token": TEXT, "IdempotencyToken": TEXT},
    ),
    kept_files.index: EndpointSchema(gives=list[KeptFile], query=_PAGES),
    kept_files.read: EndpointSchema(query={"task": TEXT, "path": TEXT}),
    payload_files.show: EndpointSchema(gives=UploadState, query={"members": NUMBER}),
    payload_files.receive: EndpointSchema(
        gives=UploadState, query={"size": NUMBER, "offset": NUMBER}
    ),
    dispatch.dispatch_payload: EndpointSchema(gives=dispatch.JobDispatchResponse),
    bulk_dispatch.dispatch_bulk: EndpointSchema(
        takes=JobDispatchRequest,
        gives=BulkDispatchAnswer,
        query={"idempotency_token": TEXT, "IdempotencyToken": TEXT, "first_line": NUMBER},
        is_lines=True,
    ),
    dispatch.force_periodic: EndpointSchema(gives=dispatch.PeriodicForceResponse),
    dispatch.list_slots: EndpointSchema(gives=list[Slot], query=_PAGES),
    notify.test: EndpointSchema(takes=ReceiverTest, gives=list[ReceiverResult], needs_body=False),
    dispatch.list_notifications: EndpointSchema(gives=list[Notification], query=_PAGES),
    dispatch.periodic_schedule: EndpointSchema(gives=PeriodicSchedule),
    dispatch.pause_periodic: EndpointSchema(gives=dispatch.PeriodicPauseResponse),
    dispatch.resume_periodic: EndpointSchema(gives=dispatch.PeriodicPauseResponse),
    scaling.status: EndpointSchema(gives=ScaleStatus),
    scaling.scale: EndpointSchema(takes=ScalingRequest, gives=jobs.JobRegisterResponse),
    scaling.policies: EndpointSchema(
        gives=list[ScalingPolicyStub], query={**_LISTING, "job": TEXT, "type": TEXT}
    ),
    scaling.policy: EndpointSchema(gives=ScalingPolicy),
    allocations.list_allocations: EndpointSchema(
        gives=list[AllocationListItem], query={**_LISTING, **_ALLOCATIONS}
    ),
    allocations.read_allocation: EndpointSchema(gives=AllocationResponse),
    allocations.stop_alloc: EndpointSchema(
        gives=allocations.AllocStopResponse, query={"no_shutdown_delay": FLAG}
    ),
    allocations.services: EndpointSchema(gives=list[JobRegistrationBody]),
    evaluations.index: EndpointSchema(
        gives=list[Evaluation], query={**_LISTING, "job": TEXT, "status": TEXT}
    ),
    evaluations.remove: EndpointSchema(takes=evaluations.EvalDeleteRequest),
    evaluations.count: EndpointSchema(gives=evaluations.CountResponse, query={"filter": TEXT}),
    evaluations.read: EndpointSchema(gives=Evaluation),
    evaluations.placed: EndpointSchema(gives=list[AllocationListItem]),
    deployments.index: EndpointSchema(gives=list[Deployment], query=_LISTING),
    deployments.read: EndpointSchema(gives=Deployment),
    deployments.placed: EndpointSchema(gives=list[AllocationListItem]),
    deployments.promote: EndpointSchema(takes=deployments.DeploymentPromoteRequest, gives=_STEERED),
    deployments.fail: EndpointSchema(gives=_STEERED),
    deployments.pause: EndpointSchema(takes=deployments.DeploymentPauseRequest, gives=_STEERED),
    deployments.unblock: EndpointSchema(takes=deployments.DeploymentUnblockRequest, gives=_STEERED),
    deployments.allocation_health: EndpointSchema(
        takes=deployments.DeploymentAllocHealthRequest, gives=_STEERED
    ),
    confinement.show: EndpointSchema(gives=ConfinementShown),
    nodes.index: EndpointSchema(
        gives=list[nodes.NodeStub], query={**_LISTING, "resources": FLAG, "held": FLAG}
    ),
    nodes.read: EndpointSchema(gives=Node),
    nodes.node_allocations: EndpointSchema(
        gives=list[AllocationResponse], query={"filter": TEXT, "holding": FLAG, **_PAGES}
    ),
    nodes.hosted_tasks: EndpointSchema(gives=list[HostedTask], query=_PAGES),
    events.stream: EndpointSchema(
        gives=EventsOfWrite,
        query={"topic": TEXT, "index": NUMBER, "gather": TEXT, "brief": FLAG},
        is_lines=True,
    ),
    logs.logs: EndpointSchema(query={"task": TEXT, "type": TEXT, "plain": FLAG, **_STREAM}),
    files.list_dir: EndpointSchema(gives=list[files.FileListEntry], query={"path": TEXT}),
    files.stat_file: EndpointSchema(gives=files.FileStat, query={"path": TEXT}),
    files.read_file: EndpointSchema(query={"path": TEXT}),
    files.read_file_at: EndpointSchema(query={"path": TEXT, "offset": NUMBER, "limit": NUMBER}),
    files.stream_file: EndpointSchema(query={"path": TEXT, **_STREAM}),
    variables.index: EndpointSchema(gives=list[VariableMetadata], query=_LISTING),
    variables.read: EndpointSchema(gives=Variable),
    variables.write: EndpointSchema(
        takes=SubmittedVariable,
        gives=Variable,
        query={"cas": NUMBER, "lock-acquire": FLAG, "lock-renew": FLAG, "lock-release": FLAG},
    ),
    variables.remove: EndpointSchema(query={"cas": NUMBER, "lock-id": TEXT}),
    namespaces.index: EndpointSchema(gives=list[Namespace], query={"prefix": TEXT, "filter": TEXT}),
    namespaces.read: EndpointSchema(gives=Namespace),
    namespaces.create: EndpointSchema(takes=Namespace),
    namespaces.update: EndpointSchema(takes=Namespace),
}
