"""Registration: store a submitted job as a new version unless it is unchanged, in one transaction.

The order of checks is Nomad's, because clients show the first error (source: Nomad's recorded
responses `register-request-errors`, `register-validation`, `enforce-index`, `update-job`). The
order is: the body, the job itself, the enforced index, and immutable fields.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from daemon.config.data_directory import payloads_beside
from daemon.flow.workflow_keys import has_job_keys, has_keys
from daemon.jobs.evaluate import new_evaluation
from daemon.jobs.namespaces import forbidden_drivers
from daemon.jobs.preserve import preserve
from daemon.jobspec.budgets import DEFAULTS, Budgets
from daemon.jobspec.canonicalize import canonicalize, keep_scaling_ids, same_definition
from daemon.jobspec.policies import JobPolicySet
from daemon.jobspec.rules.job import tag, total_count
from daemon.jobspec.sandbox_exemptions import weakened_settings
from daemon.jobspec.steward_meta.job_keys import (
    AFTER,
    NOTIFY_COMMAND,
    NOTIFY_TO,
    RUN_QUEUE,
    RUN_UPDATE,
)
from daemon.jobspec.steward_meta.step_keys import STEP_QUEUES
from daemon.jobspec.validate import ValidationResult, scaling_refusal, transition_error, validate
from daemon.matching.cluster_support import unavailable_features, unsupported_on_cluster
from storage import garbage
from storage.errors import Conflict, Invalid, Malformed, Refused
from storage.queries import evaluations, freezes, job_status, jobs, namespaces, submissions
from storage.read_pool import ReadSnapshot
from storage.records.base import Record, Uint64
from storage.records.codec import Document, JobDocument
from storage.records.evaluation import Trigger
from storage.records.job import Job, Submission
from storage.records.periodic import calendars_of
from storage.records.task import SecretsConfig, Task
from storage.store import Store
from storage.writer import Transaction

PRIORITIES = range(1, 101)
MAY_OPEN = "exec-unfiltered"  # capability in a namespace
_LARGE = 1024  # bytes of a request: a larger one can take more than 3 ms to complete
_MOST_VALUES = 100  # texts in the sensitive variables of a job
_MOST_OF_VALUES = 64 * 1024  # bytes of these texts
SENSITIVE = "sensitive"  # word in each source that has a sensitive variable
# Bytes; a longer source is not stored (Nomad's recorded responses: submissions).
MAX_SOURCE = 1_000_000


class JobRegisterRequest(Record, frozen=True, kw_only=True):
    """The body of a registration (Nomad's API: Create Job, Update Existing Job)."""

    job: JobDocument | None = None
    namespace: str = ""
    submission: Submission | None = None
    enforce_index: bool = False
    job_modify_index: Uint64 = 0
    eval_priority: int = 0
    policy_override: bool = False
    preserve_counts: bool = False
    preserve_resources: bool = False
    files: dict[str, str] | None = None  # digests of input files by name, for `payload://NAME`


class JobValidateRequest(Record, frozen=True, kw_only=True):
    """The body of a validation request."""

    job: JobDocument | None = None


class RegistrationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a registration: the index of the write, and the evaluation, if any."""

    index: int
    job_modify_index: int
    eval_id: str = ""
    eval_create_index: int = 0
    warnings: str = ""


class RegistrationContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a registration, in addition to the store.

    `policies` are rules for jobs, and `budgets` limit the size of jobs. `secrets` returns the
    reason if tasks cannot get a Vault token, and an empty string otherwise. `may_mount` returns
    whether jobs may mount a host volume; its arguments are the name of the volume, and whether the
    mount is read-only. `may_open` returns whether jobs of a namespace may relax the sandbox of
    `exec`. `commands` are the notification commands. `clusters` maps each cluster pool to its
    drivers. `oversubscription` permits memory beyond the reservation. `look` returns the errors in
    the driver configuration of a task. If a job follows other jobs, `may_read` and `may_dispatch`
    return whether the caller may read and dispatch jobs of a namespace.
    """

    region: str
    node_pools: Collection[str]
    policies: JobPolicySet = JobPolicySet()
    budgets: Budgets = DEFAULTS
    secrets: Callable[[ReadSnapshot, SecretsConfig], str] = lambda _, block: (
        "the daemon cannot issue Vault tokens"
    )
    may_mount: Callable[[str, bool], bool] = lambda _, read_only: False
    may_open: Callable[[str], bool] = lambda _: False
    commands: Collection[str] = ()
    receivers: Collection[str] = ()
    clusters: Mapping[str, Collection[str]] = {}
    oversubscription: bool = False
    look: Callable[[Task], Sequence[str]] = lambda _: ()
    may_read: Callable[[str], bool] = lambda _: False
    may_dispatch: Callable[[str], bool] = lambda _: False
    # Returns whether the caller may override the freezes of a namespace.
    may_override: Callable[[str], bool] = lambda _: False
    # Stores the values of a version's sensitive variables.
    keep_sensitive: Callable[[Transaction, Job, Sequence[str]], None] = lambda tx, job, values: None

    def unreadable(self, job: Job) -> Iterator[str]:
        """Yield the errors in the driver configurations of a job's tasks, with group and task."""
        for group in job.task_groups or ():
            for task in group.tasks or ():
                for fault in self.look(task):
                    yield f'Group "{group.name}", task "{task.name}": {fault}'

    def findings(self, job: Job) -> ValidationResult:
        """Return all errors and warnings of a complete job that do not depend on the store."""
        result = validate(job, self.budgets, oversubscription=self.oversubscription)
        if not (has_job_keys(job) or any(map(has_keys, job.task_groups or ()))):
            return result
        from daemon.flow import graph  # imported late: few jobs are workflows

        if problems := tuple(graph.problems(job)):
            return msgspec.structs.replace(result, errors=(*result.errors, *problems))
        return result.with_warnings(*graph.warnings(job))


def step_counts(job: Job) -> Iterator[str]:
    """Yield an error for each step of a workflow that has too many elements.

    Yield another error if all steps together have too many. Yield nothing for any other job.
    """
    if not (has_job_keys(job) or any(map(has_keys, job.task_groups or ()))):
        return
    from daemon.flow import graph

    yield from graph.count_problems(job)


def parse_job(
    request: JobRegisterRequest, namespace: str | None, surroundings: RegistrationContext
) -> tuple[Job, ValidationResult]:
    """Return the complete job of a request, with errors and warnings.

    `namespace` is the namespace in the query, which overrides the job's own namespace. Raises
    `Malformed` or `OverBudget`.
    """
    if request.job is None:
        raise Malformed("Job must be specified")
    if "ID" not in request.job:
        raise Malformed("Job ID hasn't been provided")
    if request.eval_priority and request.eval_priority not in PRIORITIES:
        raise Malformed("Eval priority must be between 1 and 100 inclusively")
    if refusal := scaling_refusal(request.job):
        raise Malformed(refusal)
    return complete(request.job, namespace, surroundings)


def validate_submission(
    db: ReadSnapshot,
    request: JobValidateRequest,
    namespace: str | None,
    surroundings: RegistrationContext,
) -> tuple[Job, ValidationResult]:
    """Return a job with all errors and warnings of a registration.

    Raises `Malformed` or `OverBudget`.
    """
    if request.job is None:
        raise Malformed("Job must be specified")
    job, findings = complete(request.job, namespace, surroundings)
    check_next_version(db, job, surroundings.budgets)
    findings = findings.after(*reference_error(db, job, surroundings))
    return job, findings.with_warnings(*state_warnings(db, job, surroundings))


def complete(
    document: Document, namespace: str | None, surroundings: RegistrationContext
) -> tuple[Job, ValidationResult]:
    """Return the complete job of a document, with errors and warnings.

    `namespace` is the namespace in the query, which overrides the job's own namespace. Raises
    `OverBudget`.
    """
    surroundings.budgets.check(document)
    placed = {**document, "Namespace": namespace} if namespace else document
    job = canonicalize(placed, region=surroundings.region)
    return job, surroundings.findings(job).after(*tag(document))


async def register_job(
    store: Store,
    request: JobRegisterRequest,
    *,
    namespace: str | None,
    registrar: str = "",
    surroundings: RegistrationContext,
    now: int,
    eval_id: str,
    scaling_ids: Iterator[str],
    remarks: Sequence[str] = (),
    size: int = 0,
) -> RegistrationResult:
    """Store the job of a request as a new version, unless it is unchanged, with its evaluation.

    `remarks` are warnings about the request, and `size` is its length in bytes. `registrar` is the
    accessor of the caller's token, empty without access control. Raises `Malformed`, `Invalid`,
    `Refused` or `Conflict` with Nomad's texts.
    """

    def complete() -> tuple[Job, ValidationResult, list[str]]:
        job, findings = parse_job(request, namespace, surroundings)
        return job, findings, list(surroundings.unreadable(job))

    # The next slots of a schedule may take long to compute, depending on its expressions.
    is_large = size > _LARGE or "Periodic" in (request.job or {})
    sensitive = await _sensitive_variables(request.submission)
    remarks = [*remarks, *sensitive.warnings]
    job, findings, unreadable = await garbage.in_thread(complete) if is_large else complete()
    if job.region != surroundings.region:
        raise Refused("No path to region")
    findings = findings.with_warnings(*remarks, *unreadable)
    source = request.submission
    if source is not None and (size := _size(source)) > MAX_SOURCE:
        findings = findings.with_warnings(
            f"job source size of {size / MAX_SOURCE:.1f} MB exceeds maximum of 1.0 MB "
            "and will be discarded"
        )
        source = None
    job = msgspec.structs.replace(job, submit_time=now, service_token_id=registrar)
    new_ids = [next(scaling_ids) for _ in job.task_groups or ()]

    def write(tx: Transaction) -> RegistrationResult:
        before = jobs.current(tx, job.namespace, job.id)
        check_place(tx, job, findings, surroundings)
        _check_freeze(tx, job, now, surroundings)
        if request.enforce_index:
            check_index(before, request.job_modify_index)
        if before and (refusal := transition_error(before, job)):
            raise Refused(refusal)
        after = preserve(
            job, before, counts=request.preserve_counts, resources=request.preserve_resources
        )
        limit = surroundings.budgets.job_max_count
        for problem in (*total_count(after, limit), *step_counts(after)):
            raise Refused(problem)  # preserved counts may exceed the limit
        warnings_of_job = [
            *surroundings.policies.check(after, override=request.policy_override),
            *state_warnings(tx, after, surroundings),
        ]
        done = store_version(
            tx,
            after,
            before,
            source=source,
            now=now,
            scaling_ids=new_ids,
            eval_id=eval_id,
            eval_priority=request.eval_priority,
            submitted=job,
            budgets=surroundings.budgets,
        )
        if request.files:
            _give_files(tx, store, job, request.files, now)
        if sensitive.values and (stored := jobs.current(tx, job.namespace, job.id)):
            surroundings.keep_sensitive(tx, stored, sensitive.values)
        return msgspec.structs.replace(
            done, warnings=findings.with_warnings(*warnings_of_job).warnings
        )

    return await store.write(write, is_long=is_large)


def _check_freeze(tx: Transaction, job: Job, now: int, surroundings: RegistrationContext) -> None:
    """Raise `Denied` if a freeze refuses changes of the job and the caller does not override it.

    The check includes the current version, so that a new version cannot leave a frozen queue.
    """
    if freezes.any_open(tx):
        from daemon.jobs.freezes import check_change  # imported late: few daemons have freezes

        before = jobs.current(tx, job.namespace, job.id) or job
        for definition in (before, job):
            check_change(tx, definition, now, overrides=surroundings.may_override(job.namespace))


class SensitiveVariables(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the sensitive variables of a job file, or the reason why they are unknown."""

    values: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def _give_files(
    tx: Transaction, store: Store, job: Job, files: Mapping[str, str], now: int
) -> None:
    """Assign input files to a registered job. Raises `Malformed`."""
    # Imported late, because few jobs have files.
    from daemon.jobs.payload_files import check_files, replace_files

    check_files(tx, payloads_beside(store.path), job.namespace, files)
    replace_files(tx, job.namespace, job.id, files, now)


async def _sensitive_variables(source: Submission | None) -> SensitiveVariables:
    if source is None or SENSITIVE not in source.source:
        return SensitiveVariables()
    return await garbage.in_thread(partial(sensitive_variables, source))


def sensitive_variables(source: Submission | None) -> SensitiveVariables:
    """Return the sensitive variables of a source. This takes long for a long source.

    Raises `Malformed`.
    """
    if source is None or SENSITIVE not in source.source:
        return SensitiveVariables()
    # Imported late, because few job files have such variables.
    from daemon.jobspec.hcl.scope import FunctionEnvironment
    from daemon.jobspec.hcl.source import HclError
    from daemon.jobspec.parse import FILE_NAME, JobFile, sensitive_values

    file = JobFile(
        text=source.source,
        variable_files=((FILE_NAME, source.variables),) if source.variables else (),
        flags=source.variable_flags or {},
        is_v1=source.format == "hcl1",
    )
    try:
        values = tuple(sensitive_values(file, FunctionEnvironment(random=bytes)))
        _check_sensitive(values)
        return SensitiveVariables(values=values)
    except HclError as error:
        if source.format == "json":  # a job in the form of the API has no variables
            return SensitiveVariables()
        reason = f"sensitive variables are not masked, because their values are unknown: {error}"
        return SensitiveVariables(warnings=(reason,))


def _check_sensitive(values: Sequence[str]) -> None:
    """Raise `Malformed` if sensitive variables have too many or too long values to be masked."""
    size = sum(len(value.encode(errors="replace")) for value in values)
    if len(values) > _MOST_VALUES or size > _MOST_OF_VALUES:
        raise Malformed(
            f"Submission: the sensitive variables have {len(values)} values, in total {size} "
            f"bytes: at most {_MOST_VALUES} values and {_MOST_OF_VALUES} bytes are allowed"
        )


def _size(source: Submission) -> int:
    """Return the size of a source and its variables in bytes."""
    flags = source.variable_flags or {}
    texts = [source.source, source.variables, *flags, *flags.values()]
    return sum(len(text.encode()) for text in texts)


def _unknown_receivers(job: Job, surroundings: RegistrationContext) -> Iterator[str]:
    """Yield the notification receivers that are not configured."""
    command = NOTIFY_COMMAND.of(job.meta)
    receivers = [(NOTIFY_COMMAND.name, command, "notify_commands", surroundings.commands)]
    receivers += [
        (NOTIFY_TO.name, name, "notify_receivers", surroundings.receivers)
        for name in NOTIFY_TO.of(job.meta)
    ]
    for key, name, setting, configured in receivers:
        if name and name not in configured:
            names = ", ".join(sorted(configured)) or "none exists"
            yield (
                f'Meta of job: "{key}" is "{name}", must be one of {setting} in the daemon\'s '
                f"configuration: {names}"
            )


def check_place(
    db: ReadSnapshot, job: Job, findings: ValidationResult, surroundings: RegistrationContext
) -> None:
    """Raise `Invalid` if a job, its namespace or its pool is invalid."""
    if error := findings.after(*reference_error(db, job, surroundings)).error:
        raise Invalid(error)


def reference_error(db: ReadSnapshot, job: Job, surroundings: RegistrationContext) -> list[str]:
    """Return the errors about missing objects and about features that the namespace forbids."""
    errors = []
    namespace = namespaces.find(db, job.namespace)
    if namespace is None:
        errors.append(f'job "{job.id}" is in nonexistent namespace "{job.namespace}"')
    else:
        errors += forbidden_drivers(job, namespace)
    if job.node_pool not in surroundings.node_pools:
        errors.append(f'job "{job.id}" is in nonexistent node pool "{job.node_pool}"')
    errors += _unfit(job, surroundings.clusters)
    errors += _unknown_receivers(job, surroundings)
    if AFTER.name in (job.meta or ()):
        from daemon.jobs.followers import follow_errors  # imported late: few jobs follow others

        errors += follow_errors(db, job, surroundings.may_read, surroundings.may_dispatch)
    if _names_queues(job):
        from daemon.jobs.queues import queue_errors  # imported late: few jobs have a queue

        errors += queue_errors(db, job)
    if used := calendars_of(job):
        from daemon.jobs import calendars  # imported late: few jobs use a calendar

        errors += calendars.unknown(db, job.namespace, used)
    for task in (task for group in job.task_groups or () for task in group.tasks or ()):
        if task.secrets_config and (refusal := surroundings.secrets(db, task.secrets_config)):
            errors.append(f'task "{task.name}" cannot have a token: {refusal}')
        errors += [
            f'task "{task.name}": {name} in its config needs the capability "{MAY_OPEN}" in namespace '
            f'"{job.namespace}": leave it out, or ask for that capability'
            for name in weakened_settings(task)
            if not surroundings.may_open(job.namespace)
        ]
    for volume in (
        volume for group in job.task_groups or () for volume in (group.volumes or {}).values()
    ):
        if volume.type == "host" and not surroundings.may_mount(volume.source, volume.read_only):
            errors.append(
                f'the host volume "{volume.source}" cannot be mounted in this mode: a host_volume policy must allow it'
            )
    return errors


def state_warnings(db: ReadSnapshot, job: Job, surroundings: RegistrationContext) -> list[str]:
    """Return the warnings about a job that depend on other objects."""
    messages: list[str] = []
    if freezes.any_open(db):
        from daemon.jobs.freezes import warnings  # imported late: few daemons have freezes

        messages += warnings(db, job)
    if AFTER.name in (job.meta or ()):
        from daemon.jobs.followers import follow_warnings  # imported late: few jobs follow others

        messages += follow_warnings(db, job, surroundings.may_read)
    if _names_queues(job):
        from daemon.jobs.queues import queue_warnings  # imported late: few jobs have a queue

        messages += queue_warnings(db, job)
    if RUN_UPDATE.name in (job.meta or ()):
        from daemon.jobs.run_updates import update_warnings  # imported late: few jobs have the key

        messages += update_warnings(db, job)
    return messages


def _names_queues(job: Job) -> bool:
    groups = job.task_groups or ()
    return RUN_QUEUE.name in (job.meta or ()) or any(
        STEP_QUEUES.name in (group.meta or ()) for group in groups
    )


def _unfit(job: Job, clusters: Mapping[str, Collection[str]]) -> list[str]:
    """Return the features of a job that its cluster pool does not support."""
    if job.node_pool not in clusters:
        return []
    drivers = clusters[job.node_pool]
    return [
        f'group "{group.name}": {feature} cannot be in node pool "{job.node_pool}", which is a '
        f"cluster: {fix}, or choose another node_pool"
        for group in job.task_groups or ()
        for feature, fix in (
            *unsupported_on_cluster(job, group),
            *unavailable_features(group, drivers),
        )
    ]


def check_index(before: Job | None, enforced: int) -> None:
    """Raise `Conflict` unless the job has the enforced index; 0 means that it must not exist."""
    if before is None:
        if enforced:
            raise Conflict(f"Enforcing job modify index {enforced}: job does not exist")
        return
    if not enforced:
        raise Conflict("Enforcing job modify index 0: job already exists")
    if before.job_modify_index != enforced:
        raise Conflict(
            f"Enforcing job modify index {enforced}: job exists with conflicting job modify "
            f"index: {before.job_modify_index}"
        )


def store_submission(tx: Transaction, source: Submission, job: Job) -> None:
    """Store the source of a version."""
    submissions.add(
        tx,
        msgspec.structs.replace(
            source,
            namespace=job.namespace,
            job_id=job.id,
            version=job.version,
            job_modify_index=job.job_modify_index,
        ),
    )


def _is_same(db: ReadSnapshot, before: Job | None, job: Job) -> bool:
    """Return whether a job equals its current version."""
    if before is None or jobs.definition_index(db, job.namespace, job.id) is None:
        return False
    return same_definition(before, job)


def check_versions(db: ReadSnapshot, job: Job, budgets: Budgets) -> None:
    """Raise `OverBudget` if a job may not have another version."""
    budgets.check_versions(*jobs.size_of_versions(db, job.namespace, job.id))


def check_next_version(db: ReadSnapshot, job: Job, budgets: Budgets) -> None:
    """Raise `OverBudget` if a new version would exceed the maximum number of versions of a job."""
    if not _is_same(db, jobs.current(db, job.namespace, job.id), job):
        check_versions(db, job, budgets)


def store_version(
    tx: Transaction,
    job: Job,
    before: Job | None,
    *,
    now: int,
    scaling_ids: Iterable[str],
    eval_id: str,
    eval_priority: int = 0,
    source: Submission | None = None,
    submitted: Job | None = None,
    budgets: Budgets,
) -> RegistrationResult:
    """Store the evaluation of a job, and the job as its newest version if it has changed.

    `submitted` is the job before preserved values were filled in; None if none were. Nomad compares
    the submitted job with the current version (source: Nomad's recorded responses
    `preserve-resources`). Raises `OverBudget`.
    """
    unchanged = before if _is_same(tx, before, submitted or job) else None
    stored = unchanged or job
    if unchanged is None:
        check_versions(tx, job, budgets)
        numbered = keep_scaling_ids(job, before, iter(scaling_ids), tx.index)
        stored = jobs.append_version(tx, numbered)
        if source is not None:
            store_submission(tx, source, stored)
    done = RegistrationResult(index=tx.index, job_modify_index=stored.modify_index)
    if not stored.launches_children:
        evaluation = new_evaluation(
            stored,
            eval_id,
            Trigger.JOB_REGISTER,
            priority=eval_priority,
            job_modify_index=0 if unchanged else tx.index,
        )
        evaluations.put(tx, evaluation, now)
        done = msgspec.structs.replace(done, eval_id=eval_id, eval_create_index=tx.index)
    job_status.refresh_summary(tx, stored.namespace, stored.id)
    return done
