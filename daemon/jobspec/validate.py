"""Whether a job makes sense: all that is wrong with it at once, and what is merely dubious.

The rules stand in `rules/`, noun by noun, and the texts are the peer's, because scripts match them
(golden: register-validation, register-warnings, validate-job). What depends on stored state
(namespace, node pool, enforced index) is for those who read it.
"""

from collections.abc import Iterator

import msgspec

from daemon.jobspec import extensions
from daemon.jobspec.budgets import DEFAULTS, Budgets
from daemon.jobspec.gotext import multi_error
from daemon.jobspec.rules.job import job as job_rules
from daemon.jobspec.rules.services import mesh
from daemon.jobspec.rules.warnings import warnings as job_warnings
from storage.records.codec import Document
from storage.records.job import Job, JobType

MIN_PRIORITY = 1
MAX_PRIORITY = 100


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of a job: errors refuse it, remarks go along with the answer."""

    errors: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def error(self) -> str:
        """Return all errors as one text, empty when there are none."""
        return multi_error(self.errors)

    @property
    def warnings(self) -> str:
        """Return all remarks as one text, empty when there are none."""
        if not self.remarks:
            return ""
        head = "1 warning" if len(self.remarks) == 1 else f"{len(self.remarks)} warnings"
        return f"{head}:\n" + "".join(f"\n* {remark.strip()}" for remark in self.remarks)

    def with_warnings(self, *remarks: str) -> "Findings":
        """Return these findings with more remarks."""
        return msgspec.structs.replace(self, remarks=(*self.remarks, *remarks))

    def after(self, *errors: str) -> "Findings":
        """Return these findings with errors before them, found where the job was looked up."""
        return msgspec.structs.replace(self, errors=(*errors, *self.errors))


def validate(job: Job, budgets: Budgets = DEFAULTS, *, oversubscription: bool = False) -> Findings:
    """Return everything that is wrong or dubious with a complete job.

    Its counts are looked at only here, because the texts are the peer's; all other limits are
    `Budgets.check`'s, before. `oversubscription`: memory may exceed what is reserved.
    """
    if faults := list(mesh(job)):  # the peer looks no further
        return Findings(errors=tuple(faults))
    errors = [
        *_services_beside_us(job),
        *job_rules(job, budgets.job_max_count),
        *_refused(job),
        *_not_offered(job),
        *extensions.problems(job),
    ]
    remarks = job_warnings(job, oversubscription=oversubscription)
    return Findings(errors=tuple(errors), remarks=tuple(remarks))


def scaling_refusal(document: Document) -> str | None:
    """Return why a document is refused before defaults are filled in, None when it is not."""
    groups = document.get("TaskGroups", ())
    if document.get("Type") == JobType.SYSTEM and any("Scaling" in group for group in groups):
        return "Task groups with job type system do not support scaling blocks"
    return None


def transition_error(before: Job, after: Job) -> str | None:
    """Return why a job cannot become another one, None when it can (golden: update-job)."""
    if before.type != after.type:
        return f'cannot update job from type "{before.type}" to "{after.type}"'
    for kind, was, becomes in (
        ("periodic", before.periodic is not None, after.periodic is not None),
        ("parameterized", _is_parameterized(before), _is_parameterized(after)),
    ):
        if was and not becomes:
            return f"cannot update {kind} job to being non-{kind}"
        if becomes and not was:
            return f"cannot update non-{kind} job to being {kind}"
    return "field 'Dispatched' is read-only" if before.dispatched != after.dispatched else None


def _is_parameterized(job: Job) -> bool:
    return job.parameterized_job is not None and not job.dispatched


def _services_beside_us(job: Job) -> Iterator[str]:
    """Object, once each, to another secrets service than ours and to clusters of discovery."""
    tasks = [task for group in job.task_groups or () for task in group.tasks or ()]
    asked = [task.secrets_config.cluster for task in tasks if task.secrets_config]
    if missing := [cluster for cluster in asked if cluster != "default"]:
        yield f'Vault "{missing[0]}" not enabled but used in the job'
    yield from _discovery(job)


def _discovery(job: Job) -> Iterator[str]:
    for group in job.task_groups or ():
        tasks = group.tasks or []
        services = [
            *(group.services or ()),
            *(one for task in tasks for one in task.services or ()),
        ]
        blocks = [block for block in (group.consul, *(task.consul for task in tasks)) if block]
        clusters = [one.cluster for one in services if one.provider == "consul"]
        if any(cluster != "default" for cluster in [*clusters, *(one.cluster for one in blocks)]):
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
    """Object to what a job may be, but not as a client submits it."""
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
    """Object to what the peer sells: the words are its own, clients show them as they are."""
    tasks = [task for group in job.task_groups or () for task in group.tasks or ()]
    if any(task.resources.numa and task.resources.numa.affinity != "none" for task in tasks):
        yield "numa scheduling requires Nomad Enterprise"
    if any(task.schedule for task in tasks):
        yield "task schedules requires Nomad Enterprise"
