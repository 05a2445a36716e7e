"""Job versions: revert, stability and tags."""

import msgspec

from daemon.flow.workflow_keys import is_workflow
from daemon.jobs.register import (
    RegistrationContext,
    RegistrationResult,
    check_place,
    check_versions,
    store_submission,
    store_version,
)
from daemon.jobspec.steward_meta.key import PREFIX
from daemon.jobspec.validate import ValidationResult
from storage.errors import Malformed, NotFound, Refused
from storage.queries import freezes, jobs, submissions, versions
from storage.records.base import Record, Uint64
from storage.records.job import Job, JobStatus, VersionTag
from storage.store import Store
from storage.writer import Transaction


class JobRevertRequest(Record, frozen=True, kw_only=True):
    """The body of a revert (Nomad's API: Revert to Older Job Version).

    The tokens in the body are never stored.
    """

    job_id: str = ""
    job_version: Uint64 = 0
    enforce_prior_version: Uint64 | None = None
    service_discovery_token: str = ""
    secrets_token: str = ""


class JobStabilityRequest(Record, frozen=True, kw_only=True):
    """The body that sets a version's stability (Nomad's API: Set Job Stability)."""

    job_id: str = ""
    job_version: Uint64 = 0
    stable: bool = False


class TagVersionRequest(Record, frozen=True, kw_only=True):
    """The body that tags a version.

    Without a version, or with `latest`, it tags the newest version.
    """

    version: Uint64 = 0
    latest: bool = False
    description: str = ""


def check_ids(body_id: str, path_id: str) -> None:
    """Raise `Malformed` unless a body names the job of the path."""
    if not body_id:
        raise Malformed("JobID must be specified")
    if body_id != path_id:
        raise Malformed("Job ID does not match")


# --- revert ---


async def revert_job(
    store: Store,
    namespace: str,
    request: JobRevertRequest,
    *,
    surroundings: RegistrationContext,
    now: int,
    eval_id: str,
) -> RegistrationResult:
    """Store an older version's definition as the newest version.

    The definition is validated like a registration, so a definition that was once accepted can be
    rejected. Raises `Refused` or `Invalid`.
    """

    def write(tx: Transaction) -> RegistrationResult:
        present = jobs.current(tx, namespace, request.job_id)
        if present is None:
            raise Refused(f'job "{request.job_id}" not found')
        target = _target(tx, present, request)
        if freezes.any_open(tx):
            from daemon.jobs.freezes import check_change  # imported late: few daemons have freezes

            for definition in (present, target):
                check_change(tx, definition, now, overrides=surroundings.may_override(namespace))
        surroundings.budgets.check_stored(target)
        check_place(tx, target, surroundings.findings(target), surroundings)
        remarks = surroundings.policies.check(target, override=False)
        done = store_version(
            tx,
            _as_new_version(target, now),
            present,
            source=submissions.find(tx, namespace, target.id, target.version),
            now=now,
            scaling_ids=(),
            eval_id=eval_id,
            budgets=surroundings.budgets,
        )
        warnings = ValidationResult(remarks=tuple(remarks)).warnings
        return msgspec.structs.replace(done, warnings=warnings)

    return await store.write(write)


def _target(tx: Transaction, present: Job, request: JobRevertRequest) -> Job:
    """Return the job version to revert to; the order of checks is Nomad's."""
    if request.job_version == present.version:
        raise Refused("can't revert to current version")
    target = jobs.version(tx, present.namespace, present.id, request.job_version)
    if target is None:
        raise Refused(_no_version(present.namespace, present.id, request.job_version))
    prior = request.enforce_prior_version
    if prior is not None and prior != present.version:
        raise Refused(f"Current job has version {present.version}; enforcing version {prior}")
    return target


def revert(tx: Transaction, target: Job, now: int) -> Job:
    """Store the definition of a stable version as the newest version; return the stored job."""
    job = jobs.append_version(tx, _as_new_version(target, now))
    if source := submissions.find(tx, target.namespace, target.id, target.version):
        store_submission(tx, source, job)
    return job


def _as_new_version(target: Job, now: int) -> Job:
    return msgspec.structs.replace(
        target, stable=False, version_tag=None, status=JobStatus.PENDING, submit_time=now
    )


class RerunVersions:
    """Provides the versions for re-runs of steps; they are validated like registrations."""

    def __init__(self, surroundings: RegistrationContext, now: int) -> None:
        self._surroundings, self._now = surroundings, now

    def candidate(self, tx: Transaction, present: Job, number: int) -> Job:
        """Return a new version with the definition of version `number`; check but do not store it.

        For a child, `number` is a version of its parent; the child keeps its ID, its payload, and
        its own meta. Raises `NotFound`, `Invalid`, `Refused` or `Malformed`.
        """
        context, owner = self._surroundings, present.parent_id or present.id
        target = jobs.version(tx, present.namespace, owner, number)
        if target is None:
            raise NotFound(_no_version(present.namespace, owner, number))
        if present.parent_id:
            target = _as_child(target, present)
        if not is_workflow(target):
            raise Malformed(f'version {number} of job "{owner}" is not a workflow')
        if freezes.any_open(tx):
            from daemon.jobs.freezes import check_change  # imported late: few daemons have freezes

            overrides = context.may_override(present.namespace)
            for definition in (present, target):
                check_change(tx, definition, self._now, overrides=overrides)
        context.budgets.check_stored(target)
        check_place(tx, target, context.findings(target), context)
        context.policies.check(target, override=False)
        check_versions(tx, target, context.budgets)
        return _as_new_version(target, self._now)

    def store(self, tx: Transaction, candidate: Job, number: int) -> Job:
        """Store `candidate` as a new version, with the source of version `number`; return it."""
        job = jobs.append_version(tx, candidate)
        if not job.parent_id and (source := submissions.find(tx, job.namespace, job.id, number)):
            store_submission(tx, source, job)
        return job


def _as_child(parent: Job, child: Job) -> Job:
    """Return the child with the definition of `parent`, a version of the child's parent job."""
    own = {key: text for key, text in (child.meta or {}).items() if not key.startswith(PREFIX)}
    return msgspec.structs.replace(
        parent,
        id=child.id,
        name=child.name,
        parent_id=child.parent_id,
        dispatched=child.dispatched,
        dispatch_idempotency_token=child.dispatch_idempotency_token,
        payload=child.payload,
        priority=child.priority,
        periodic=child.periodic,
        parameterized_job=child.parameterized_job,
        meta={**(parent.meta or {}), **own} or None,
    )


def _no_version(namespace: str, job_id: str, number: int) -> str:
    return f'job "{job_id}" in namespace "{namespace}" at version {number} not found'


# --- stability and tags ---


async def set_stable(store: Store, namespace: str, request: JobStabilityRequest) -> int:
    """Set the stability of a version; return the index of the write. Raises `Refused`."""

    def write(tx: Transaction) -> int:
        job_id, number = request.job_id, request.job_version
        if not versions.set_stable(tx, namespace, job_id, number, stable=request.stable):
            raise Refused(_no_version(namespace, job_id, number))
        return tx.index

    return await store.write(write)


async def tag_version(
    store: Store, namespace: str, job_id: str, name: str, request: TagVersionRequest, now: int
) -> tuple[VersionTag, int]:
    """Tag a version; return the tag and the index of the write. Raises `Refused`."""
    if request.latest and request.version:
        raise Refused(f"version must be zero when tagging latest, got: {request.version}")
    tag = VersionTag(name=name, description=request.description, tagged_time=now)

    def write(tx: Transaction) -> tuple[VersionTag, int]:
        number = request.version
        if request.latest and (present := jobs.current(tx, namespace, job_id)):
            number = present.version
        if versions.tagged(tx, namespace, job_id, name) not in (None, number):
            raise Refused(f'tag "{name}" already exists on a different version of job "{job_id}"')
        if not versions.set_tag(tx, namespace, job_id, number, tag):
            raise Refused(f'job "{job_id}" version {number} not found')
        return tag, tx.index

    return await store.write(write)


async def untag_version(store: Store, namespace: str, job_id: str, name: str) -> int:
    """Remove a tag from its version; return the index of the write. Raises `Refused`."""

    def write(tx: Transaction) -> int:
        number = versions.tagged(tx, namespace, job_id, name)
        if number is None:
            raise Refused(f'tag "{name}" not found on job "{job_id}"')
        versions.set_tag(tx, namespace, job_id, number, None)
        return tx.index

    return await store.write(write)
