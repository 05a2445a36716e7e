"""Effects of a new version of a workflow on the active run of an earlier version."""

import msgspec

from daemon.jobspec.steward_meta.job_keys import RUN_UPDATE
from daemon.jobspec.steward_meta.key import PREFIX
from storage.records.flow import FlowRun, RunUpdate
from storage.records.job import Job, JobType


def waits_for(job: Job, run: FlowRun) -> bool:
    """Return whether the run of version `job` must wait until an earlier version's `run` ends."""
    return (
        run.version < job.version
        and run.goes_on
        and not job.stop
        and job.type == JobType.BATCH
        and RUN_UPDATE.of(job.meta) == RunUpdate.FINISH
    )


def keeps_steps(job: Job) -> bool:
    """Return whether the run of a new version takes over steps of the run that it replaces."""
    return RUN_UPDATE.of(job.meta) == RunUpdate.KEEP


def without_own_keys(job: Job) -> Job:
    """Return the job without its own Steward keys, because tasks do not get these keys."""
    meta = {key: text for key, text in (job.meta or {}).items() if not key.startswith(PREFIX)}
    return msgspec.structs.replace(job, meta=meta)
