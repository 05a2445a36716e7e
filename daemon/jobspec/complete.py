"""Defaults that Nomad's client adds to a parsed job (`Canonicalize`).

This is the client's half of completing a job. It replaces nulls with defaults and changes nothing
else. `canonicalize` is the server's half, at registration. It returns the same job whether or not
this half ran before.
"""

import posixpath

import msgspec

from daemon.jobspec.defaults.connect import (
    complete_connect,
    complete_logs,
    complete_resources,
)
from daemon.jobspec.defaults.nulls import fill_empty, replace_nulls, weigh_null, with_defaults
from daemon.jobspec.defaults.service import CHECK_RESTART
from daemon.jobspec.defaults.task import LOCAL, PLUGIN
from storage.records.base import SECOND
from storage.records.codec import Document
from storage.records.group import (
    RESCHEDULE_POLICIES,
    RESTART_POLICIES,
    ROLLING_UPDATE,
    EphemeralDisk,
    Migrate,
    ReschedulePolicy,
)
from storage.records.job import JobType

_UPDATE: Document = msgspec.to_builtins(ROLLING_UPDATE)
_MIGRATE: Document = msgspec.to_builtins(Migrate())
_DISK: Document = msgspec.to_builtins(EphemeralDisk())
_RESTART: dict[str, Document] = msgspec.to_builtins(RESTART_POLICIES)
_RESCHEDULE: dict[str, Document] = msgspec.to_builtins(RESCHEDULE_POLICIES)
_NEVER_RESCHEDULED: Document = msgspec.to_builtins(ReschedulePolicy())
_UPDATED_BY_DEFAULT = (JobType.SERVICE, JobType.SYSTEM)

_JOB: Document = {
    "Type": "service",
    "Priority": 50,
    "Region": "global",
    "Namespace": "default",
    **dict.fromkeys(("AllAtOnce", "Stop", "Stable"), False),
    **dict.fromkeys(("Version", "CreateIndex", "ModifyIndex", "JobModifyIndex"), 0),
    **dict.fromkeys(("ParentID", "Status", "StatusDescription", "NodePool"), ""),
    **dict.fromkeys(("ConsulNamespace", "SecretsNamespace", "ServiceTokenID"), ""),
}
_PERIODIC: Document = {
    "Enabled": True,
    "ProhibitOverlap": False,
    "Spec": "",
    "Specs": [],
    "SpecType": "cron",
    "TimeZone": "UTC",
}
_REGION: Document = {"Count": 1, "Datacenters": [], "Meta": {}}
_ARTIFACT: Document = {"GetterMode": "any", "GetterInsecure": False}
_MOUNT: Document = {"ReadOnly": False, "PropagationMode": "private", "SELinuxLabel": ""}
_TEMPLATE: Document = {
    **dict.fromkeys(("SourcePath", "EmbeddedTmpl", "DestPath", "ChangeSignal"), ""),
    "LeftDelim": "{{",
    "RightDelim": "}}",
    "Envvars": False,
    "Once": False,
    "VaultGrace": 0,
}
_VAULT: Document = {
    "Namespace": "",
    "AllowTokenExpiration": False,
    "ChangeSignal": "SIGHUP",
}
_SERVICE: Document = {
    "AddressMode": "auto",
    "Provider": "consul",
    "Cluster": "default",
    "OnUpdate": "require_healthy",
}


def complete(job: Document) -> Document:
    """Add the client's defaults to a parsed job in place; return the same document."""
    replace_nulls(job, _JOB)
    if job["Update"] is not None or job["Type"] in _UPDATED_BY_DEFAULT:
        job["Update"] = with_defaults(job["Update"], _UPDATE)
    if job["Periodic"] is not None:
        replace_nulls(job["Periodic"], _PERIODIC)
    if job["Multiregion"] is not None:
        multiregion = job["Multiregion"]
        multiregion["Strategy"] = with_defaults(
            multiregion["Strategy"], {"MaxParallel": 0, "OnFailure": ""}
        )
        for region in _documents(multiregion, "Regions"):
            replace_nulls(region, _REGION)
    weigh_null(job)
    for group in _documents(job, "TaskGroups"):
        _complete_group(group, job)
    return job


def _documents(document: Document, name: str) -> list[Document]:
    documents: list[Document] | None = document[name]
    return documents or []


def _merge_unset(document: Document | None, other: Document | None) -> Document | None:
    """Return a block whose unset fields come from `other`; None if both blocks are missing."""
    if document is None or other is None:
        return dict(document or other or {}) if document is not None or other is not None else None
    return with_defaults(document, other)


# --- group ---


def _complete_group(group: Document, job: Document) -> None:
    kind = job["Type"]
    if group["Count"] is None:
        least = group["Scaling"]["Min"] if group["Scaling"] else None
        group["Count"] = 1 if least is None else least
    if group["Scaling"] is not None:
        replace_nulls(group["Scaling"], {"Min": group["Count"], "Enabled": True})
    group["EphemeralDisk"] = with_defaults(group["EphemeralDisk"], _DISK)
    group["RestartPolicy"] = with_defaults(
        group["RestartPolicy"], _RESTART.get(kind, _RESTART[JobType.BATCH])
    )
    update = _merge_unset(group["Update"], job["Update"])
    group["Update"] = with_defaults(update, _UPDATE) if update is not None else None
    reschedule = _merge_unset(group["ReschedulePolicy"], job["Reschedule"])
    if reschedule is not None or kind in _RESCHEDULE:
        reschedule = with_defaults(reschedule, _RESCHEDULE.get(kind, _NEVER_RESCHEDULED))
    group["ReschedulePolicy"] = reschedule
    migrate = _merge_unset(group["Migrate"], job["Migrate"])
    if migrate is not None or kind == JobType.SERVICE:
        migrate = with_defaults(migrate, _MIGRATE)
    group["Migrate"] = migrate
    if group["Disconnect"] is not None:
        replace_nulls(group["Disconnect"], {"Replace": True, "Reconcile": "best_score"})
    _complete_consul(group)
    weigh_null(group)
    for service in _documents(group, "Services"):
        _complete_service(service, f"{job['Name']}-{group['Name']}")
    for task in _documents(group, "Tasks"):
        _complete_task(task, group, job)


def _complete_consul(document: Document) -> None:
    if document["Consul"] is not None:
        fill_empty(document["Consul"], {"Cluster": "default"})


# --- services ---


def _complete_service(service: Document, name: str) -> None:
    fill_empty(service, {**_SERVICE, "Name": name})
    if service["CheckRestart"] is not None:
        replace_nulls(service["CheckRestart"], CHECK_RESTART)
    for check in _documents(service, "Checks"):
        fill_empty(check, {"OnUpdate": service["OnUpdate"]})
        check["CheckRestart"] = _check_restart(check["CheckRestart"], service["CheckRestart"])
    if service["Connect"] is not None:
        service["Connect"] = complete_connect(service["Connect"])


def _check_restart(document: Document | None, of_service: Document | None) -> Document | None:
    """Return a check's restart rule: the service's block, overridden by the check's block."""
    if document is None:
        return dict(of_service) if of_service is not None else None
    if of_service is not None:
        document = with_defaults(document, of_service)
        document["Limit"] = document["Limit"] or of_service["Limit"]
        document["IgnoreWarnings"] = document["IgnoreWarnings"] or of_service["IgnoreWarnings"]
    return with_defaults(document, CHECK_RESTART)


# --- task ---


def _complete_task(task: Document, group: Document, job: Document) -> None:
    replace_nulls(task, {"KillTimeout": 5 * SECOND})
    task["RestartPolicy"] = with_defaults(task["RestartPolicy"], group["RestartPolicy"])
    task["LogConfig"] = complete_logs(task["LogConfig"])
    task["Resources"] = complete_resources(task["Resources"])
    _complete_consul(task)
    weigh_null(task)
    for artifact in _documents(task, "Artifacts"):
        _complete_artifact(artifact)
    for template in _documents(task, "Templates"):
        replace_nulls(template, _TEMPLATE)
        template["ChangeSignal"] = template["ChangeSignal"].upper()
        if template["ChangeScript"] is not None:
            replace_nulls(template["ChangeScript"], {"Command": ""})
    for mount in _documents(task, "VolumeMounts"):
        replace_nulls(mount, _MOUNT)
    if task["SecretsConfig"] is not None:
        replace_nulls(task["SecretsConfig"], _VAULT)
        fill_empty(task["SecretsConfig"], {"Cluster": "default"})
    if task.get("CSIPluginConfig") is not None:
        fill_empty(task["CSIPluginConfig"], PLUGIN)
    for policy in _documents(task, "ScalingPolicies"):
        replace_nulls(policy, {"Min": 0, "Enabled": True})
    for service in _documents(task, "Services"):
        _complete_service(service, f"{job['Name']}-{group['Name']}-{task['Name']}")


def _complete_artifact(artifact: Document) -> None:
    replace_nulls(artifact, _ARTIFACT)
    if artifact["RelativeDest"] is None:
        source = artifact["GetterSource"] or ""
        name = posixpath.basename(source.rstrip("/")) if artifact["GetterMode"] == "file" else ""
        artifact["RelativeDest"] = posixpath.join(LOCAL, name)
