"""Validation of a job: all errors and warnings together.

The rules are in `rules/`, one module per object. Their texts are Nomad's, because scripts match
them (fixtures: register-validation, register-warnings, validate-job). The callers check the
conditions that depend on the store: the namespace, the node pool and the enforced index.
"""

from collections.abc import Iterator

import msgspec

from daemon.jobspec.budgets import DEFAULTS, Budgets
from daemon.jobspec.rules.job import job as job_rules
from daemon.jobspec.rules.services import sidecar_errors
from daemon.jobspec.rules.warnings import warnings as job_warnings
from daemon.jobspec.steward_meta.check import problems as key_problems
from daemon.matching import regexp
from daemon.text.go_format import multi_error
from storage.records.codec import Document
from storage.records.job import Job, JobType

MIN_PRIORITY = 1
MAX_PRIORITY = 100
_MOST_FOR_PATTERNS = 1_000_000  # microseconds for all regular expressions of a job


class ValidationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Findings about a job. Errors reject the job; warnings are part of the response."""

    errors: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def error(self) -> str:
        """Return all errors as one text; empty if there are none."""
        return multi_error(self.errors)

    @property
    def warnings(self) -> str:
        """Return all warnings as one text; empty if there are none."""
        if not self.remarks:
            return ""
        head = "1 warning" if len(self.remarks) == 1 else f"{len(self.remarks)} warnings"
        return f"{head}:\n" + "".join(f"\n* {remark.strip()}" for remark in self.remarks)

    def with_warnings(self, *remarks: str) -> "ValidationResult":
        """Return the findings with additional warnings."""
        return msgspec.structs.replace(self, remarks=(*self.remarks, *remarks))

    def after(self, *errors: str) -> "ValidationResult":
        """Return the findings with `errors` before the other errors."""
        return msgspec.structs.replace(self, errors=(*errors, *self.errors))


def validate(
    job: Job, budgets: Budgets = DEFAULTS, *, oversubscription: bool = False
) -> ValidationResult:
    """Return all errors and warnings of a complete job.

    Of the limits in `budgets`, this function checks only the maximum count, because its error has
    Nomad's text. `Budgets.check` has already checked all other limits. `oversubscription` means
    that tasks may use more memory than they reserve.
    """
    if faults := list(sidecar_errors(job)):  # as in Nomad, which stops here
        return ValidationResult(errors=tuple(faults))
    errors = [
        *_services_beside_us(job),
        *_rules(job, budgets.job_max_count),
        *_refused(job),
        *_not_offered(job),
        *key_problems(job),
    ]
    remarks = job_warnings(job, oversubscription=oversubscription)
    return ValidationResult(errors=tuple(errors), remarks=tuple(remarks))


def _rules(job: Job, max_count: int) -> Iterator[str]:
    with regexp.limited(_MOST_FOR_PATTERNS):
        try:
            yield from job_rules(job, max_count)
        except regexp.PatternsTooCostly as error:
            yield f"Constraints and Affinities: {error}"


def scaling_refusal(document: Document) -> str | None:
    """Return why a document is rejected before defaults are set; None if it is valid."""
    groups = document.get("TaskGroups", ())
    if document.get("Type") == JobType.SYSTEM and any("Scaling" in group for group in groups):
        return "Task groups with job type system do not support scaling blocks"
    return None


def transition_error(before: Job, after: Job) -> str | None:
    """Return why a job cannot be changed from `before` to `after`; None if it can.

    Source: Nomad's recorded responses `update-job`.
    """
    if before.type != after.type:
        return f'cannot update job from type "{before.type}" to "{after.type}"'
    for kind, was, becomes in (
        ("periodic", before.periodic is not None, after.periodic is not None),
        ("parameterized", before.is_parameterized, after.is_parameterized),
    ):
        if was and not becomes:
            return f"cannot update {kind} job to being non-{kind}"
        if becomes and not was:
            return f"cannot update non-{kind} job to being {kind}"
    return "field 'Dispatched' is read-only" if before.dispatched != after.dispatched else None


def _services_beside_us(job: Job) -> Iterator[str]:
    """Yield errors for unsupported Vault and Consul clusters, and for Consul partitions.

    There is at most one error for Vault and one for Consul. A task's Consul partition must match
    that of its group.
    """
    tasks = [task for group in job.task_groups or () for task in group.tasks or ()]
    clusters = [task.secrets_config.cluster for task in tasks if task.secrets_config]
    if missing := [cluster for cluster in clusters if cluster != "default"]:
        yield f'Vault "{missing[0]}" not enabled but used in the job'
    yield from _discovery(job)


def _discovery(job: Job) -> Iterator[str]:
    for group in job.task_groups or ():
        tasks = group.tasks or []
        services = [
            *(group.services or ()),
            *(service for task in tasks for service in task.services or ()),
        ]
        blocks = [block for block in (group.consul, *(task.consul for task in tasks)) if block]
        clusters = [service.cluster for service in services if service.provider == "consul"]
        if any(
            cluster != "default" for cluster in [*clusters, *(block.cluster for block in blocks)]
        ):
            yield "non-default Consul cluster requires Nomad Enterprise"
            return
        partition = group.consul.partition if group.consul else ""
        for block in blocks:
            if partition and block.partition not in ("", partition):
                yield (
                    f'task.consul.partition "{block.partition}" must match '
                    f'group.consul.partition "{partition}" if both are set'
                )
                return


def _refused(job: Job) -> Iterator[str]:
    """Yield errors for fields that clients cannot set at submission."""
    if job.type == "_core":
        yield "job type cannot be core"
    if job.payload:
        yield "job can't be submitted with a payload, only dispatched"
    if not MIN_PRIORITY <= job.priority <= MAX_PRIORITY:
        yield f"job priority must be between [{MIN_PRIORITY}, {MAX_PRIORITY}]"
    for group in job.task_groups or ():
        owners = [(f"task group {group.name}", group.services)]
        owners += [(f"task {task.name}", task.services) for task in group.tasks or ()]
        for owner, services in owners:
            for service in services or ():
                if service.identity is not None and not service.identity.name:
                    yield (f"Service {service.name} in {owner} has an identity with an empty name")


def _not_offered(job: Job) -> Iterator[str]:
    """Yield errors for Nomad Enterprise features, with Nomad's texts, which clients display."""
    tasks = [task for group in job.task_groups or () for task in group.tasks or ()]
    if any(task.resources.numa and task.resources.numa.affinity != "none" for task in tasks):
        yield "numa scheduling requires Nomad Enterprise"
    if any(task.schedule for task in tasks):
        yield "task schedules requires Nomad Enterprise"
