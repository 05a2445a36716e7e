"""Defaults of a group. Its policies depend on the job's type and on the job's own policies."""

import msgspec

from daemon.jobspec.defaults.blocks import (
    consul,
    network,
    scaling,
    set_default_weights,
    without_empty_fields,
)
from daemon.jobspec.defaults.service import complete_service
from daemon.jobspec.defaults.task import complete_task
from storage.records.codec import Document
from storage.records.group import RESCHEDULE_POLICIES, RESTART_POLICIES, ROLLING_UPDATE, Migrate
from storage.records.job import JobType

# Deprecated fields of a group: accepted without effect (Nomad's recorded responses: register-warnings).
_WITHOUT_EFFECT = frozenset(
    {"MaxClientDisconnect", "StopAfterClientDisconnect", "PreventRescheduleOnLost"}
)
_UPDATED_BY_DEFAULT = frozenset({JobType.SERVICE, JobType.SYSTEM})
_NEVER_RESCHEDULED = frozenset({JobType.SYSTEM, JobType.SYSBATCH})
_ROLLING_UPDATE: Document = msgspec.to_builtins(ROLLING_UPDATE)
_MIGRATE: Document = msgspec.to_builtins(Migrate())
_RESTART: dict[str, Document] = msgspec.to_builtins(RESTART_POLICIES)
_RESCHEDULE: dict[str, Document] = msgspec.to_builtins(RESCHEDULE_POLICIES)


def update_for_all(document: Document, job_type: str) -> Document | None:
    """Return the update block that applies to all groups of a job.

    If the job has no update block, the result is the default block for service and system jobs, and
    None for other types.
    """
    if "Update" in document:
        return {**_ROLLING_UPDATE, **document["Update"]}
    return _ROLLING_UPDATE if job_type in _UPDATED_BY_DEFAULT else None


def complete_group(document: Document, job: Document) -> Document:
    """Return a group with every default set.

    `job` is the enclosing document. Its policies apply to all groups.
    """
    group = without_empty_fields(document, without=_WITHOUT_EFFECT)
    group["Name"] = group.get("Name", "")
    if "Count" not in group:
        group["Count"] = group.get("Scaling", {}).get("Min", 1)
    _set_policies(group, document, job)
    set_default_weights(group)
    if "Scaling" in group:
        group["Scaling"] = scaling(group["Scaling"], job, group)
    if "Consul" in group:
        group["Consul"] = consul(group["Consul"], job["ConsulNamespace"])
    if "Disconnect" in group:
        block = {"LostAfter": 0, **group["Disconnect"]}
        group["Disconnect"] = {**block, "Reconcile": block.get("Reconcile") or "best_score"}
    if "Networks" in group:
        group["Networks"] = [network(network_block) for network_block in group["Networks"]]
    if volumes := _volumes(group.pop("Volumes", {})):
        group["Volumes"] = volumes
    if "Services" in group:
        group["Services"] = [complete_service(service, job, group) for service in group["Services"]]
    if "Tasks" in group:
        group["Tasks"] = [complete_task(task, group, job) for task in group["Tasks"]]
    return group


def _set_policies(group: Document, document: Document, job: Document) -> None:
    """Merge the policies of the job and the group over the defaults of the job's type."""
    kind = job["Type"]
    group["RestartPolicy"] = {
        **_RESTART.get(kind, _RESTART[JobType.BATCH]),
        **document.get("RestartPolicy", {}),
    }
    policies = {
        "Update": _group_update(job["Update"], document.get("Update")),
        "ReschedulePolicy": _merged(
            _RESCHEDULE.get(kind, {}),
            job["Reschedule"],
            document.get("ReschedulePolicy"),
            always=kind not in _NEVER_RESCHEDULED,
        ),
        "Migrate": _merged(
            _MIGRATE, job["Migrate"], document.get("Migrate"), always=kind == JobType.SERVICE
        ),
    }
    for name, policy in policies.items():
        group.pop(name, None)
        if policy is not None:
            group[name] = policy


def _group_update(of_job: Document | None, of_group: Document | None) -> Document | None:
    if of_group is not None:
        return {**_ROLLING_UPDATE, **(of_job or {}), **of_group}
    # A job without an update block reads back with an all-zero block.
    return of_job if of_job and any(of_job.values()) else None


def _merged(
    defaults: Document, of_job: Document | None, of_group: Document | None, *, always: bool
) -> Document | None:
    if of_job is None and of_group is None and not always:
        return None
    return {**defaults, **(of_job or {}), **(of_group or {})}


def _volumes(document: Document) -> Document:
    """Return the volumes of known types; ignore volumes of unknown types, and null.

    Source: Nomad's recorded responses `register-validation`.
    """
    known_types = ("host", "csi")
    return {
        name: volume
        for name, volume in document.items()
        if volume and volume.get("Type") in known_types
    }
