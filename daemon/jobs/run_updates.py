"""Updates of workflows that have an active run.

With `steward_run_update = "finish"`, an active run keeps the version with which it began. Until the
run ends, the scheduler uses this version of the job, and the current version waits.
"""

from collections.abc import Iterator

import msgspec

from daemon.flow.run_updates import waits_for
from daemon.jobspec.steward_meta.job_keys import RUN_UPDATE
from storage.queries import jobs, runs
from storage.read_pool import ReadSnapshot
from storage.records.flow import FlowRun, FlowStatus, RunUpdate
from storage.records.job import Job


def version_of_run(db: ReadSnapshot, job: Job, run: FlowRun | None) -> Job | None:
    """Return the version of the active run if the current version `job` waits for the run's end.

    Otherwise return None. The result has the job modify index of the current version, because a
    decision is valid only until the next change of the job.
    """
    if run is None or not waits_for(job, run):
        return None
    earlier = jobs.version(db, job.namespace, job.id, run.version)
    if earlier is None:
        return None
    return msgspec.structs.replace(earlier, job_modify_index=job.job_modify_index)


def waits(job: Job, run: FlowRun) -> str:
    """Return why the version `job` begins no run yet: an earlier version has the active `run`."""
    return f"version {job.version} waits until run {run.number} of version {run.version} has ended"


def update_warnings(db: ReadSnapshot, job: Job) -> Iterator[str]:
    """Yield a warning if there is an active run of an earlier version of the job."""
    run = runs.newest(db, job.namespace, job.id)
    current = jobs.current(db, job.namespace, job.id)
    if run is None or current is None or current.stop or job.stop or not run.goes_on:
        return
    from daemon.jobspec.canonicalize import same_definition  # imported late: only for a change

    is_same = same_definition(current, job)
    if is_same and run.version == current.version:
        return
    active = f"run {run.number} of version {run.version}"
    match RUN_UPDATE.of(job.meta):
        case RunUpdate.FINISH:
            replaced = (
                ""
                if is_same or run.version == current.version
                else (f"; version {current.version}, which waits for the same end, gets no run")
            )
            yield f"{active} ends first, and the new version waits for its end{replaced}"
        case RunUpdate.KEEP if run.status == FlowStatus.RUNNING and not run.only_step:
            yield (
                f"{active} is canceled; the new run takes over the unchanged steps with good "
                "results, and runs all other steps"
            )
        case RunUpdate.KEEP | RunUpdate.REPLACE:
            yield f"{active} is canceled, and the new run begins with its first steps"
