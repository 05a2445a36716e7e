"""Registering: a submitted job becomes a new version, or is found unchanged, in one write.

The order of checks is the peer's, because clients tell by it what they did wrong (golden:
register-request-errors, register-validation, enforce-index, update-job): the body, the job
itself, the index that the caller enforces, what may not change.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec
import trio

from daemon.jobs.evaluate import new_evaluation
from daemon.jobs.namespaces import forbidden
from daemon.jobs.preserve import preserve
from daemon.jobspec.budgets import DEFAULTS, Budgets
from daemon.jobspec.canonicalize import canonicalize, keep_scaling_ids, same_definition
from daemon.jobspec.extensions import NOTIFY_COMMAND
from daemon.jobspec.policies import Policies
from daemon.jobspec.rules.job import tag, total_count
from daemon.jobspec.validate import Findings, scaling_refusal, transition_error, validate
from daemon.jobspec.walls import openings
from daemon.matching.clusters import unfit, unoffered
from storage.errors import Conflict, Invalid, Malformed, Refused
from storage.queries import evaluations, job_status, jobs, namespaces, submissions
from storage.readers import Snapshot
from storage.records.base import Record, Uint64
from storage.records.codec import Document, JobDocument, encode
from storage.records.evaluation import Trigger
from storage.records.job import Job, Submission
from storage.records.task import SecretsConfig
from storage.store import Store
from storage.writer import Transaction

PRIORITIES = range(1, 101)
MAY_OPEN = "exec-unfiltered"  # capability in a namespace
_LARGE = 4 * 1024  # bytes of a job as JSON: completing more takes longer than 3 ms
MAX_SOURCE = 1_000_000  # bytes; a longer source is not kept (golden: submissions)


class JobRegisterRequest(Record, frozen=True, kw_only=True):
    """The body of a registration (spec: Create Job, Update Existing Job)."""

    job: JobDocument | None = None
    namespace: str = ""
    submission: Submission | None = None
    enforce_index: bool = False
    job_modify_index: Uint64 = 0
    eval_priority: int = 0
    policy_override: bool = False
    preserve_counts: bool = False
    preserve_resources: bool = False


class JobValidateRequest(Record, frozen=True, kw_only=True):
    """The body of a request to look at a job and do nothing."""

    job: JobDocument | None = None


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """What a registration did: `index` of the write, and the evaluation if there was one to make."""

    index: int
    job_modify_index: int
    eval_id: str = ""
    eval_create_index: int = 0
    warnings: str = ""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a job may name besides what is stored: the one region, the pools, and the secrets.

    `policies` are what it must keep; `budgets` how large it may be; `secrets` tells why its tasks may not have a token, or nothing;
    `may_mount` whether a volume of the machine may be mounted, if only for reading; `may_open`
    whether jobs of a namespace may open the walls of `exec`; `commands` are
    those by which somebody may be told of it; `clusters` the pools that are of a cluster, with their
    drivers; `oversubscription` tells whether memory may exceed the reservation.
    """

    region: str
    node_pools: Collection[str]
    policies: Policies = Policies()
    budgets: Budgets = DEFAULTS
    secrets: Callable[[Snapshot, SecretsConfig], str] = lambda _, block: "nobody vouches for it"
    may_mount: Callable[[str, bool], bool] = lambda _, read_only: False
    may_open: Callable[[str], bool] = lambda _: False
    commands: Collection[str] = ()
    clusters: Mapping[str, Collection[str]] = {}
    oversubscription: bool = False

    def findings(self, job: Job) -> Findings:
        """Return everything that is wrong or dubious with a complete job by itself."""
        return validate(job, self.budgets, oversubscription=self.oversubscription)


def parse_job(
    request: JobRegisterRequest, namespace: str | None, surroundings: Surroundings
) -> tuple[Job, Findings]:
    """Return the complete job of a request, and what is to be said of it.

    `namespace` is what the query names, and wins over the job's own. Raises `Malformed` or
    `OverBudget`.
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


def look_at(
    db: Snapshot, request: JobValidateRequest, namespace: str | None, surroundings: Surroundings
) -> tuple[Job, Findings]:
    """Return a job, and all that a registration would say of it, errors too.

    Raises `Malformed` or `OverBudget`.
    """
    if request.job is None:
        raise Malformed("Job must be specified")
    job, findings = complete(request.job, namespace, surroundings)
    return job, findings.after(*misplaced(db, job, surroundings))


def complete(
    document: Document, namespace: str | None, surroundings: Surroundings
) -> tuple[Job, Findings]:
    """Return the complete job of a document, and what is to be said of it.

    `namespace` is what the query names, and wins over the job's own. Raises `OverBudget`.
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
    surroundings: Surroundings,
    now: int,
    eval_id: str,
    scaling_ids: Iterator[str],
    remarks: Sequence[str] = (),
) -> Registered:
    """Store the job of a request as a new version unless it is unchanged, and have it evaluated.

    `remarks` are warnings about the request itself. `registrar` is the accessor of the caller's token, empty where nobody is asked for one.
    Raises `Malformed`, `Invalid`, `Refused` or `Conflict`, with the peer's texts.
    """
    complete = partial(parse_job, request, namespace, surroundings)
    is_large = len(encode(request.job)) > _LARGE
    job, findings = await trio.to_thread.run_sync(complete) if is_large else complete()
    if job.region != surroundings.region:
        raise Refused("No path to region")
    findings = findings.with_warnings(*remarks)
    source = request.submission
    if source is not None and (size := _size(source)) > MAX_SOURCE:
        findings = findings.with_warnings(
            f"job source size of {size / MAX_SOURCE:.1f} MB exceeds maximum of 1.0 MB "
            "and will be discarded"
        )
        source = None
    job = msgspec.structs.replace(job, submit_time=now, service_token_id=registrar)
    new_ids = [next(scaling_ids) for _ in job.task_groups or ()]

    def write(tx: Transaction) -> Registered:
        before = jobs.current(tx, job.namespace, job.id)
        check_place(tx, job, findings, surroundings)
        if request.enforce_index:
            check_index(before, request.job_modify_index)
        if before and (refusal := transition_error(before, job)):
            raise Refused(refusal)
        after = preserve(
            job, before, counts=request.preserve_counts, resources=request.preserve_resources
        )
        for problem in total_count(after, surroundings.budgets.job_max_count):
            raise Refused(problem)  # with the counts of before there may be too many
        told = surroundings.policies.check(after, override=request.policy_override)
        done = enter(
            tx,
            after,
            before,
            source=source,
            now=now,
            scaling_ids=new_ids,
            eval_id=eval_id,
            eval_priority=request.eval_priority,
            submitted=job,
        )
        return msgspec.structs.replace(done, warnings=findings.with_warnings(*told).warnings)

    return await store.write(write)


def _size(source: Submission) -> int:
    """Return the bytes of a source with the variables that belong to it."""
    flags = source.variable_flags or {}
    texts = [source.source, source.variables, *flags, *flags.values()]
    return sum(len(text.encode()) for text in texts)


def check_place(db: Snapshot, job: Job, findings: Findings, surroundings: Surroundings) -> None:
    """Raise `Invalid` if there is anything wrong with a job, or with where it is to be."""
    if error := findings.after(*misplaced(db, job, surroundings)).error:
        raise Invalid(error)


def misplaced(db: Snapshot, job: Job, surroundings: Surroundings) -> list[str]:
    """Return what the job names that does not exist, or that its namespace does not allow."""
    errors = []
    namespace = namespaces.find(db, job.namespace)
    if namespace is None:
        errors.append(f'job "{job.id}" is in nonexistent namespace "{job.namespace}"')
    else:
        errors += forbidden(job, namespace)
    if job.node_pool not in surroundings.node_pools:
        errors.append(f'job "{job.id}" is in nonexistent node pool "{job.node_pool}"')
    errors += _unfit(job, surroundings.clusters)
    command = NOTIFY_COMMAND.of(job.meta)
    if command and command not in surroundings.commands:
        known = ", ".join(sorted(surroundings.commands)) or "none is there"
        errors.append(
            f'Meta of job: "{NOTIFY_COMMAND.name}" is "{command}", must be one of notify_commands '
            f"in the daemon's configuration: {known}"
        )
    for task in (task for group in job.task_groups or () for task in group.tasks or ()):
        if task.secrets_config and (refusal := surroundings.secrets(db, task.secrets_config)):
            errors.append(f'task "{task.name}" cannot have a token: {refusal}')
        errors += [
            f'task "{task.name}": {name} in its config needs the capability "{MAY_OPEN}" in namespace '
            f'"{job.namespace}": leave it out, or ask for that capability'
            for name in openings(task)
            if not surroundings.may_open(job.namespace)
        ]
    for volume in (
        one for group in job.task_groups or () for one in (group.volumes or {}).values()
    ):
        if volume.type == "host" and not surroundings.may_mount(volume.source, volume.read_only):
            errors.append(
                f'the host volume "{volume.source}" may not be mounted so: see its policies'
            )
    return errors


def _unfit(job: Job, clusters: Mapping[str, Collection[str]]) -> list[str]:
    """Return what of a job cannot be in the pool that it names, because that is of a cluster."""
    if job.node_pool not in clusters:
        return []
    drivers = clusters[job.node_pool]
    return [
        f'group "{group.name}": {what} cannot be in node pool "{job.node_pool}", which is a '
        f"cluster: {fix}, or choose another node_pool"
        for group in job.task_groups or ()
        for what, fix in (*unfit(job, group), *unoffered(group, drivers))
    ]


def check_index(before: Job | None, enforced: int) -> None:
    """Raise `Conflict` unless the job is as the caller believes; 0 means that there is none."""
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


def keep_source(tx: Transaction, source: Submission, job: Job) -> None:
    """Keep the text from which a version was made."""
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


def enter(
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
) -> Registered:
    """Append a job as the newest version if it wants something new, and have it evaluated.

    `submitted` is the job as it was sent, where it was changed since. The peer compares that one
    with the present version (golden: preserve-resources).
    """
    whole = jobs.definition_index(tx, job.namespace, job.id) is not None
    is_same = whole and before is not None and same_definition(before, submitted or job)
    unchanged = before if is_same else None
    stored = unchanged or job
    if unchanged is None:
        numbered = keep_scaling_ids(job, before, iter(scaling_ids), tx.index)
        stored = jobs.append_version(tx, numbered)
        if source is not None:
            keep_source(tx, source, stored)
    done = Registered(index=tx.index, job_modify_index=stored.modify_index)
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
    job_status.settle(tx, stored.namespace, stored.id)
    return done
