"""Completion of a submitted job: the server's defaults, as Nomad stores them.

The same rules apply to JSON submissions and to job files. Both arrive in the same form: a document
with the field names of the records and without nulls. The records hold the constant defaults. This
module holds the defaults that depend on the job's type, an enclosing block or another field
(fixtures: http-basics, kind-*, scale, services). Fields that only the server sets are ignored:
status, version, indexes, parent and dispatched. So a job stays equal when a client reads it and
writes it back.
"""

from collections.abc import Iterator

import msgspec

from daemon.jobspec.defaults.blocks import set_default_weights, without_empty_fields
from daemon.jobspec.defaults.group import complete_group, update_for_all
from daemon.jobspec.defaults.implicit_constraints import with_implied
from storage.records.codec import HEAD_FIELDS, Document
from storage.records.job import Job, JobType
from storage.records.scaling import Scaling

DEFAULT_PRIORITY = 50

# Fields that only the server sets, and fields that disappear when blocks are merged.
_NOT_KEPT = frozenset(
    {
        *HEAD_FIELDS,
        "ParentID",
        "Dispatched",
        "DispatchIdempotencyToken",
        "ConsulNamespace",
        "ServiceTokenID",
        "SecretsToken",
        "ServiceDiscoveryToken",
        "Reschedule",
        "Migrate",
    }
)


def canonicalize(document: Document, *, namespace: str = "default", region: str = "global") -> Job:
    """Return the complete job that a checked document describes.

    `namespace` applies if the job names no namespace. `region` is the daemon's region; it applies
    if the job names no region, or `global`. `validate` checks the job's meaning.
    """
    job = without_empty_fields(document, without=_NOT_KEPT)
    job["ID"] = job.get("ID", "")
    job["Name"] = job.get("Name", job["ID"])
    job["Type"] = job.get("Type", JobType.SERVICE)
    job["Namespace"] = job.get("Namespace") or namespace
    if job.get("Region") in (None, "", "global"):
        job["Region"] = region
    job["NodePool"] = job.get("NodePool") or "default"
    job["Priority"] = job.get("Priority") or DEFAULT_PRIORITY
    job["Datacenters"] = job.get("Datacenters") or ["*"]
    _complete_launching(job)
    set_default_weights(job)
    if "UI" in job:
        job["UI"] = without_empty_fields(job["UI"])
    enclosing = {
        **job,
        "Update": update_for_all(document, job["Type"]),
        "Reschedule": document.get("Reschedule"),
        "Migrate": document.get("Migrate"),
        "ConsulNamespace": document.get("ConsulNamespace", ""),
    }
    job["Update"] = _update_kept(enclosing["Update"])
    if "TaskGroups" in job:
        job["TaskGroups"] = [complete_group(group, enclosing) for group in job["TaskGroups"]]
    return with_implied(msgspec.convert(job, Job))


def same_definition(job: Job, other: Job) -> bool:
    """Return whether two jobs have the same definition, so that registering creates no version.

    The definition excludes the status of a version: its stability, tag and indexes. It also
    excludes the time and author of the submission, and the IDs of scaling policies.
    """
    return _definition(job) == _definition(other)


def keep_scaling_ids(job: Job, before: Job | None, new_ids: Iterator[str], index: int) -> Job:
    """Return the job with its previous scaling policy IDs, and with `new_ids` for new policies.

    `index` is the index of the write that stores the job.
    """
    groups = job.task_groups or []
    if not any(group.scaling for group in groups):
        return job
    earlier = {group.name: group.scaling for group in (before and before.task_groups) or ()}
    numbered = [
        msgspec.structs.replace(
            group, scaling=_numbered(group.scaling, earlier.get(group.name), new_ids, index)
        )
        if group.scaling
        else group
        for group in groups
    ]
    return msgspec.structs.replace(job, task_groups=numbered)


def without_scaling(job: Job, index: int) -> Job:
    """Return the job with disabled scaling policies, because no autoscaler scales a stopped job."""
    groups = [
        msgspec.structs.replace(group, scaling=_disabled(group.scaling, index))
        if group.scaling and group.scaling.enabled
        else group
        for group in job.task_groups or ()
    ]
    return msgspec.structs.replace(job, task_groups=groups) if groups else job


def _disabled(policy: Scaling, index: int) -> Scaling:
    return msgspec.structs.replace(policy, enabled=False, modify_index=index)


def _numbered(
    policy: Scaling, earlier: Scaling | None, new_ids: Iterator[str], index: int
) -> Scaling:
    if earlier is None or earlier.type != policy.type:
        return msgspec.structs.replace(
            policy, id=next(new_ids), create_index=index, modify_index=index
        )
    same = _unnumbered(earlier) == _unnumbered(policy)
    return msgspec.structs.replace(
        policy,
        id=earlier.id,
        create_index=earlier.create_index,
        modify_index=earlier.modify_index if same else index,
    )


def _unnumbered(policy: Scaling) -> Scaling:
    return msgspec.structs.replace(policy, id="", create_index=0, modify_index=0)


# The fields in which equal jobs may differ, with the values of a new job.
_NO_HEAD = {
    field.name: field.default
    for field in msgspec.structs.fields(Job)
    if field.encode_name in (*HEAD_FIELDS, "ServiceTokenID")
}


def _definition(job: Job) -> bytes:
    groups = [
        msgspec.structs.replace(group, scaling=_unnumbered(group.scaling))
        if group.scaling
        else group
        for group in job.task_groups or ()
    ]
    bare = msgspec.structs.replace(job, task_groups=groups, **_NO_HEAD)
    # Compared as text: in Python, 1 equals True, but in a driver's configuration they differ.
    return msgspec.json.encode(bare, order="sorted")


# --- job ---


def _complete_launching(job: Document) -> None:
    if "Periodic" in job:
        periodic = {"Specs": [], **job["Periodic"]}
        job["Periodic"] = {**periodic, "TimeZone": periodic.get("TimeZone") or "UTC"}
    if "ParameterizedJob" in job:
        block = job["ParameterizedJob"]
        job["ParameterizedJob"] = {**block, "Payload": block.get("Payload") or "optional"}
    if "Multiregion" in job:
        regions = job["Multiregion"].get("Regions", ())
        job["Multiregion"] = {
            "Strategy": job["Multiregion"].get("Strategy", {}),
            "Regions": [
                {"Count": 1, "Datacenters": [], "Meta": {}, **region} for region in regions
            ],
        }


def _update_kept(update: Document | None) -> Document:
    """Return the part of a job's update block that stays in the job.

    The block itself has been copied into the groups.
    """
    if update is None or update["MaxParallel"] <= 0:
        return {}
    return {"Stagger": update["Stagger"], "MaxParallel": update["MaxParallel"]}
