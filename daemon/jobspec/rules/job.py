"""Validation of jobs: names, type, schedule, parameters, and limits on their groups."""

from collections.abc import Iterator

from daemon.jobspec import cron
from daemon.jobspec.rules.constraints import affinities, constraint, each, spreads
from daemon.jobspec.rules.group import group
from daemon.jobspec.steward_meta.step_keys import list_length
from daemon.text.go_format import format_list, join_errors, quote, wrap_error
from storage.errors import Invalid
from storage.records.codec import Document
from storage.records.group import TaskGroup
from storage.records.job import Job, JobType, Parameterized, Periodic

MAX_DESCRIPTION = 1000  # bytes

_TYPES = frozenset({*JobType, "_core"})  # `_core` has its own error
_LAUNCHED = frozenset({JobType.BATCH, JobType.SYSBATCH})
_PAYLOADS = frozenset({"optional", "required", "forbidden"})


def job(job: Job, max_count: int) -> Iterator[str]:
    """Yield the errors of a job. `max_count` limits its allocations; 0 means no limit."""
    yield from _names(job)
    if not job.type:
        yield "Missing job type"
    elif job.type not in _TYPES:
        yield f"Invalid job type: {quote(job.type)}, must be one of {', '.join(JobType)}"
    for datacenter in job.datacenters or ():
        if not datacenter:
            yield "Job datacenter must be non-empty string"
    if not job.task_groups:
        yield "Missing job task groups"
    yield from each("Constraint", job.constraints, constraint)
    yield from affinities(job.affinities, job.type)
    yield from spreads(job.spreads, job.type)
    if job.ui and (size := len(job.ui.description.encode())) > MAX_DESCRIPTION:
        yield (f"UI description must be under {MAX_DESCRIPTION} characters, currently {size}")
    yield from _groups_together(job)
    for each_group in job.task_groups or ():
        subject = f"Task group {each_group.name} validation failed"
        yield from wrap_error(subject, group(each_group, job))
    yield from _launching(job)
    yield from total_count(job, max_count)


def total_count(job: Job, most: int) -> Iterator[str]:
    """Yield the errors of the total count of all groups."""
    total = sum(max(_count(each_group), 0) for each_group in job.task_groups or ())
    if most and total > most:
        yield f"total count was greater than configured job_max_count: {total} > {most}"


def _count(each_group: TaskGroup) -> int:
    """Return the number of allocations of a group; 0 if an output of a step sets this number."""
    number = list_length(each_group.meta)
    return each_group.count if number is None else number


def tag(document: Document) -> Iterator[str]:
    """Yield the errors of the version tag in a job as it was submitted."""
    size = len((document.get("VersionTag") or {}).get("Description", "").encode())
    if size > MAX_DESCRIPTION:
        yield f"Tagged version description must be under {MAX_DESCRIPTION} characters, currently {size}"


def _names(job: Job) -> Iterator[str]:
    if not job.id:
        yield "Missing job ID"
    elif " " in job.id:
        yield "Job ID contains a space"
    elif "\0" in job.id:
        yield "Job ID contains a null character"
    if not job.name:
        yield "Missing job name"
    elif "\0" in job.name:
        yield "Job Name contains a null character"


def _groups_together(job: Job) -> Iterator[str]:
    first: dict[str, int] = {}
    for number, each_group in enumerate(job.task_groups or (), 1):
        name = each_group.name
        if not name:
            yield f"Job task group {number} missing name"
        elif name in first:
            yield f"Job task group {number} redefines '{name}' from group {first[name]}"
        first.setdefault(name, number)
        if each_group.shutdown_delay is not None and each_group.shutdown_delay < 0:
            yield "ShutdownDelay must be a positive value"
        if job.type == JobType.SYSTEM and each_group.count > 1:
            yield (
                f"Job task group {name} has count {each_group.count}. "
                "Count cannot exceed 1 with system scheduler"
            )


def _launching(job: Job) -> Iterator[str]:
    allowed = 'can only be used with "batch" or "sysbatch" scheduler'
    if job.periodic is not None and job.periodic.enabled:
        if job.type not in _LAUNCHED:
            yield f"Periodic {allowed}"
        yield from join_errors(_periodic(job.periodic))
    if job.parameterized_job is not None and job.is_parameterized:
        if job.type not in _LAUNCHED:
            yield f"Parameterized job {allowed}"
        yield from join_errors(_parameterized(job.parameterized_job))
    if job.multiregion is not None and job.multiregion.regions:
        yield "Multiregion jobs are unlicensed."  # Nomad's text: there is one region


def _periodic(block: Periodic) -> Iterator[str]:
    if block.spec and block.specs:
        yield "Only cron or crons may be used"
    if not block.spec and not block.specs:
        yield "Must specify a spec"
    try:
        cron.zone(block.time_zone)
    except Invalid as error:
        yield f"Invalid time zone {quote(block.time_zone)}: {error}"
    if block.spec_type != "cron":
        yield f"Unknown periodic specification type {quote(block.spec_type)}"
        return
    for spec in [*filter(None, [block.spec]), *(block.specs or ())]:
        try:
            cron.parse(spec)
        except Invalid as error:
            yield f"Invalid cron spec {quote(spec)}: {error}"


def _parameterized(block: Parameterized) -> Iterator[str]:
    if block.payload not in _PAYLOADS:
        yield f"Unknown payload requirement: {quote(block.payload)}"
    optional = set(block.meta_optional or ())
    if both := [key for key in dict.fromkeys(block.meta_required or ()) if key in optional]:
        yield (
            "Required and optional meta keys should be disjoint. "
            f"Following keys exist in both: {format_list(both)}"
        )
