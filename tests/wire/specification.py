"""Requirements of the jobs API specification as facts, which `test_specification.py` checks.

The facts do not depend on the implementation. `NAMED_OTHERWISE` and `ELSEWHERE` list objects that
have another name or place for Nomad's clients than in the specification.
"""

from typing import NamedTuple

REQUIRED = "required"  # marks a field without a default


class Call(NamedTuple):
    """One endpoint: its required capability, its parameters, and the fields of its answer."""

    method: str
    path: str
    needs: str = ""  # any one of these capabilities
    blocking: bool = False
    query: dict[str, object] = {}  # noqa: RUF012  # a table
    body: dict[str, object] = {}  # noqa: RUF012  # never changed
    answer: str = ""  # fields
    overrides: bool = False  # takes PolicyOverride, which needs policy-override as well


_RUN = {
    "EnforceIndex": False,
    "EvalPriority": 0,
    "Job": REQUIRED,
    "JobModifyIndex": 0,
    "PolicyOverride": False,
    "Submission": None,
}
_JOB = "/v1/job/{job_id}"

CALLS = {
    "List Jobs": Call(
        "GET",
        "/v1/jobs",
        "list-jobs",
        blocking=True,
        query={"prefix": "", "next_token": "", "per_page": 0, "filter": "", "meta": False},
        answer="ID ParentID Name Type Priority Status StatusDescription CreateIndex ModifyIndex "
        "JobModifyIndex JobSummary Meta",
    ),
    "Create Job": Call(
        "POST",
        "/v1/jobs",
        "submit-job",
        body={**_RUN, "PreserveCounts": False},
        answer="EvalID EvalCreateIndex JobModifyIndex Warnings Index LastContact KnownLeader",
        overrides=True,
    ),
    "Parse Job": Call(
        "POST",
        "/v1/jobs/parse",
        "parse-job submit-job",
        body={
            "JobHCL": REQUIRED,
            "Canonicalize": False,
            "Variables": "",
            "VariableFlags": None,
            "HCLv1": False,
        },
    ),
    "Read Job": Call("GET", _JOB, "read-job", blocking=True, answer="ID TaskGroups Status"),
    "Read Job Submission": Call(
        "GET",
        f"{_JOB}/submission",
        query={"version": REQUIRED},
        answer="Format Source JobID Namespace VariableFlags Variables Version",
    ),
    "List Job Versions": Call(
        "GET",
        f"{_JOB}/versions",
        "read-job",
        blocking=True,
        query={"diffs": False},
        answer="Diffs Index KnownLeader LastContact Versions",
    ),
    "List Job Allocations": Call(
        "GET",
        f"{_JOB}/allocations",
        "read-job",
        blocking=True,
        query={"all": False},
        answer="ID EvalID Name NodeID NextAllocation JobID TaskGroup DesiredStatus "
        "DesiredDescription ClientStatus ClientDescription CreateIndex ModifyIndex CreateTime "
        "ModifyTime RescheduleTracker TaskStates",
    ),
    "List Job Evaluations": Call(
        "GET",
        f"{_JOB}/evaluations",
        "read-job",
        blocking=True,
        answer="ID Priority Type TriggeredBy JobID Status QueuedAllocations SnapshotIndex "
        "CreateIndex ModifyIndex",
    ),
    "List Job Deployments": Call(
        "GET", f"{_JOB}/deployments", "read-job", blocking=True, query={"all": False}, answer="ID"
    ),
    "Read Job's Most Recent Deployment": Call(
        "GET",
        f"{_JOB}/deployment",
        "read-job",
        blocking=True,
        answer="ID JobID JobVersion JobModifyIndex JobCreateIndex Status StatusDescription "
        "CreateIndex ModifyIndex TaskGroups",
    ),
    "Read Job Summary": Call(
        "GET",
        f"{_JOB}/summary",
        "read-job",
        blocking=True,
        answer="JobID Summary Children CreateIndex ModifyIndex",
    ),
    "Update Existing Job": Call(
        "POST",
        _JOB,
        "submit-job",
        body=_RUN,
        answer="EvalID EvalCreateIndex JobModifyIndex",
        overrides=True,
    ),
    "Dispatch Job": Call(
        "POST",
        f"{_JOB}/dispatch",
        "dispatch-job",
        query={"IdempotencyToken": ""},
        body={"IdPrefixTemplate": "", "Payload": "", "Meta": None},
        answer="Index JobCreateIndex EvalCreateIndex EvalID DispatchedJobID",
    ),
    "Revert to Older Job Version": Call(
        "POST",
        f"{_JOB}/revert",
        "submit-job",
        body={
            "JobID": REQUIRED,
            "JobVersion": 0,
            "EnforcePriorVersion": None,
            "ServiceDiscoveryToken": "",
            "SecretsToken": "",
        },
        answer="EvalID EvalCreateIndex JobModifyIndex",
    ),
    "Set Job Stability": Call(
        "POST",
        f"{_JOB}/stable",
        "submit-job",
        body={"JobID": REQUIRED, "JobVersion": 0, "Stable": False},
        answer="JobModifyIndex",
    ),
    "Create Job Evaluation": Call(
        "POST",
        f"{_JOB}/evaluate",
        "submit-job",
        body={"JobID": REQUIRED, "EvalOptions": {"ForceReschedule": False}},
        answer="EvalID EvalCreateIndex JobModifyIndex",
    ),
    "Create Job Plan": Call(
        "POST",
        f"{_JOB}/plan",
        "submit-job",
        body={"Job": REQUIRED, "Diff": False, "PolicyOverride": False},
        answer="Index JobModifyIndex Warnings Diff NextPeriodicLaunch CreatedEvals FailedTGAllocs "
        "Annotations",
        overrides=True,
    ),
    "Force New Periodic Instance": Call(
        "POST",
        f"{_JOB}/periodic/force",
        "dispatch-job submit-job",
        answer="EvalCreateIndex EvalID",
    ),
    "Stop a Job": Call(
        "DELETE",
        _JOB,
        "submit-job",
        query={"eval_priority": 0, "global": False, "purge": False, "no_shutdown_delay": False},
        answer="EvalID EvalCreateIndex JobModifyIndex",
    ),
    "Read Job Scale Status": Call(
        "GET",
        f"{_JOB}/scale",
        "read-job-scaling read-job",
        blocking=True,
        answer="JobID Namespace JobCreateIndex JobModifyIndex JobStopped TaskGroups",
    ),
    "Scale Task Group": Call(
        "POST",
        f"{_JOB}/scale",
        "scale-job submit-job",
        body={
            "Target": REQUIRED,
            "Count": None,
            "Message": "",
            "Error": False,
            "Meta": None,
            "EnforceIndex": False,
            "JobModifyIndex": 0,
            "PolicyOverride": False,
        },
        answer="EvalCreateIndex EvalID Index JobModifyIndex KnownLeader LastContact Warnings",
        overrides=True,
    ),
    "Job Services": Call(
        "GET",
        f"{_JOB}/services",
        "read-job",
        blocking=True,
        answer="ID ServiceName Namespace NodeID Datacenter JobID AllocID Address Port Tags "
        "CreateIndex ModifyIndex",
    ),
    "List Job Actions": Call(
        "GET",
        f"{_JOB}/actions",
        "read-job",
        answer="Name Command Args TaskGroupName TaskName",
    ),
    "Run Action": Call(
        "GET",
        f"{_JOB}/action",
        "alloc-exec",
        query={
            "action": REQUIRED,
            "alloc_id": REQUIRED,
            "task": REQUIRED,
            "tty": False,
            "ws_handshake": False,
        },
    ),
}

_UPDATE = (
    "Stagger MaxParallel AutoPromote AutoRevert Canary HealthCheck HealthyDeadline MinHealthyTime "
    "ProgressDeadline"
)

# Record -> its fields. The names of the records are those of the specification.
RECORDS = {
    "SubmittedJob": "ID Name ParentID Region Namespace Type NodePool Priority Version CreateIndex "
    "ModifyIndex JobModifyIndex SubmitTime AllAtOnce Stop Stable Dispatched Datacenters Status "
    "StatusDescription Constraints Affinities Spreads Multiregion Migrate Reschedule Update "
    "Periodic ParameterizedJob Payload Meta SecretsToken ServiceDiscoveryToken ServiceTokenID "
    "SecretsNamespace TaskGroups",
    "Constraint": "LTarget RTarget Operand",
    "Affinity": "LTarget RTarget Operand Weight",
    "Update": _UPDATE,
    "Periodic": "Enabled Spec SpecType ProhibitOverlap",
    "Parameterized": "Payload MetaRequired MetaOptional",
    "TaskGroup": "Name Count Constraints Affinities Spreads Meta Volumes Scaling Services Networks "
    "Tasks MaxClientDisconnect ShutdownDelay StopAfterClientDisconnect RestartPolicy "
    "ReschedulePolicy EphemeralDisk Migrate Update",
    "RestartPolicy": "Attempts Interval Delay Mode",
    "ReschedulePolicy": "Attempts Delay DelayFunction Interval MaxDelay Unlimited",
    "EphemeralDisk": "Sticky SizeMB Migrate",
    "Migrate": "HealthCheck HealthyDeadline MaxParallel MinHealthyTime",
    "Task": "Name Driver User Kind KillSignal Config Env Meta KillTimeout Leader Lifecycle "
    "DispatchPayload LogConfig Resources RestartPolicy Services Templates Artifacts Constraints "
    "Affinities VolumeMounts ScalingPolicies CSIPluginConfig ShutdownDelay SecretsConfig",
    "Lifecycle": "Hook Sidecar",
    "DispatchPayload": "File",
    "LogConfig": "Disabled MaxFiles MaxFileSizeMB",
    "Resources": "CPU MemoryMB DiskMB IOPS Devices Networks",
    "Network": "Device CIDR IP Mode MBits DNS ReservedPorts DynamicPorts",
    "Port": "Label Value To HostNetwork",
    "Service": "Name PortLabel Tags Checks",
    "Check": "Name Type Command Args Path Protocol PortLabel Interval Timeout InitialStatus",
    "Template": "SourcePath DestPath EmbeddedTmpl ChangeMode ChangeSignal Splay Perms",
    "Artifact": "GetterSource GetterOptions RelativeDest",
    "Submission": "Format Source JobID JobIndex Namespace VariableFlags Variables Version",
    "JobSummary": "JobID Namespace CreateIndex ModifyIndex Summary Children",
    "GroupSummary": "Queued Complete Failed Running Starting Lost",
    "ChildSummary": "Pending Running Dead",
    "AllocationListItem": "ID EvalID Name NodeID PreviousAllocation NextAllocation JobID TaskGroup "
    "DesiredStatus DesiredDescription ClientStatus ClientDescription CreateIndex ModifyIndex "
    "CreateTime ModifyTime RescheduleTracker TaskStates",
    "RescheduleTracker": "Events",
    "RescheduleEvent": "PrevAllocID PrevNodeID RescheduleTime Delay",
    "TaskStateWithEvents": "State Failed StartedAt FinishedAt Events",
    "TaskEvent": "Type Time FailsTask RestartReason SetupError DriverError ExitCode Signal Message "
    "KillTimeout KillError KillReason StartDelay DownloadError ValidationError DiskLimit "
    "FailedSibling SecretsError TaskSignalReason TaskSignal DriverMessage",
    "Evaluation": "ID Priority Type TriggeredBy JobID JobModifyIndex NodeID NodeModifyIndex Status "
    "StatusDescription Wait NextEval PreviousEval BlockedEval FailedTGAllocs ClassEligibility "
    "EscapedComputedClass AnnotatePlan QueuedAllocations SnapshotIndex CreateIndex ModifyIndex",
    "PlacementMetric": "CoalescedFailures AllocationTime Scores NodesEvaluated NodesFiltered "
    "NodesAvailable NodesInPool ClassFiltered ConstraintFiltered NodesExhausted ClassExhausted "
    "DimensionExhausted",
    "PlanAnnotations": "DesiredTGUpdates",
    "DesiredUpdates": "DestructiveUpdate InPlaceUpdate Stop Migrate Place Ignore",
    "Deployment": "ID JobID JobVersion JobModifyIndex JobCreateIndex Status StatusDescription "
    "CreateIndex ModifyIndex TaskGroups",
    "DeploymentGroup": "AutoRevert Promoted PlacedCanaries DesiredCanaries DesiredTotal "
    "PlacedAllocs HealthyAllocs UnhealthyAllocs",
    "ScaleStatus": "JobID Namespace JobCreateIndex JobModifyIndex JobStopped TaskGroups",
    "GroupScale": "Desired Events Healthy Placed Running Unhealthy",
    "JobAction": "Name Command Args TaskGroupName TaskName",
    "JobDiff": "ID Type Fields Objects TaskGroups",
    "TaskGroupDiff": "Name Type Fields Objects Tasks Updates",
    "TaskDiff": "Name Type Fields Objects Annotations",
    "FieldDiff": "Name Type Old New Annotations",
    "ObjectDiff": "Name Type Fields Objects",
}

# Fields that have another name in Nomad's clients. Requests and responses use that name.
NAMED_OTHERWISE = {("Submission", "JobIndex"): "JobModifyIndex"}
# Fields that are not in a list, but in the object itself.
ELSEWHERE = {("AllocationListItem", "PreviousAllocation"): "AllocationResponse"}

# Values that the recorded responses contain: (record, field) -> values.
STATES = {
    ("Job", "Status"): "pending running",
    ("Job", "Type"): "service batch sysbatch",
    ("Evaluation", "Status"): "complete blocked",
    ("Evaluation", "TriggeredBy"): "job-register",
    ("Deployment", "Status"): "running successful",
    ("Allocation", "DesiredStatus"): "run",
    ("Allocation", "ClientStatus"): "running",
    ("TaskState", "State"): "running",
}

# Rule -> captured or own steps that show it.
RULES = {
    "a stopped job stays readable": "stop-options",
    "a purged job cannot be read": "blocking-queries/63",
    "no scaling during a deployment: 400": "scale/06",
    "namespace * lists all": "list-jobs",
    "the header of the next page": "list-jobs",
    "a payload has at most 16384 bytes": "dispatch-payload-rules",
    "the six newest sources are kept": "submissions",
    "per_page 0 means no pages": "list-jobs",
    "a dispatched id has its form": "dispatch",
    "a dispatch is made once for a token": "dispatch",
    "the token of the first frame": "actions/21",
    "a terminal can be resized": "actions/07",
    "an evaluation needs no body": "evaluate",
    "plans change nothing": "plan",
    "a soft policy can be overridden": "acl-cap-sentinel-override",
    "a name in use is not taken twice": "enforce-index",
    "counts can be kept": "preserve-counts",
    "failed allocations are placed again by force": "evaluate",
    "tokens are neither kept nor shown": "ours/05",
    "a scaling says why": "ours/10",
    "a source goes with an update": "ours/03",
}
