"""A submitted job becomes a complete one: every default in place, as the peer's server stores it.

The same rules serve a job sent as JSON and one written in a file, because both arrive as the same
document: an object whose names are spelled as records spell them and whose nulls are gone. What
is the same for every job stands as a default in the records; here stands what depends on the
job's type, on an enclosing block, or on another field (golden: http-basics, kind-*, scale,
services). What the server says about a job rather than the client (status, version, indexes,
parent, dispatched) is passed over, so that a job read and written back unchanged is unchanged.
"""

from collections.abc import Iterator

import msgspec

from daemon.jobspec.defaults.blocks import filled, weigh
from daemon.jobspec.defaults.group import complete_group, update_for_all
from daemon.jobspec.defaults.implied import with_implied
from storage.records.codec import HEAD_FIELDS, Document
from storage.records.job import Job, JobType
from storage.records.scaling import Scaling

DEFAULT_PRIORITY = 50

# Fields of a job that only the server sets, and those that do not outlive the merging of blocks.
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

    `namespace` is for a job that names none; `region` is the daemon's own, for a job that names
    none or the global one. Whether the job makes sense is `validate`'s question.
    """
    job = filled(document, without=_NOT_KEPT)
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
    weigh(job)
    if "UI" in job:
        job["UI"] = filled(job["UI"])
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


def same_definition(one: Job, other: Job) -> bool:
    """Tell whether two jobs want the same: then registering makes no new version.

    What happened to a version (status, stability, tag, indexes), when and by whom it was submitted,
    and the numbers of its scaling policies are no part of a definition.
    """
    return _definition(one) == _definition(other)


def keep_scaling_ids(job: Job, before: Job | None, new_ids: Iterator[str], index: int) -> Job:
    """Return the job with scaling policies numbered as before, and new ones from `new_ids`.

    `index` is that of the write which stores the job.
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
    """Return the job with its scaling policies disabled: nobody scales a stopped job."""
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


# What equal jobs may differ in, as a job without history has it: the head, and who registered it.
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
    # Compared as text, because in Python 1 and True are equal, and in a driver's config are not.
    return msgspec.json.encode(bare, order="sorted")


# ---- the job ------------------------------------------------------------------------------------


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
    """Return what stays of the job's update block when it has been copied into the groups."""
    if update is None or update["MaxParallel"] <= 0:
        return {}
    return {"Stagger": update["Stagger"], "MaxParallel": update["MaxParallel"]}
