"""Stamps of jobs. The stamp of a job changes whenever the data in the job's status line changes.

Computing a stamp takes one statement, which decodes no document. Computing a status line takes five
statements, and the definition and all allocations of the job are decoded.
"""

from storage.read_pool import ReadSnapshot

Stamp = tuple[int | str | None, ...]

# Each change of an evaluation, allocation or deployment sets its `modify_index`, and so does its
# creation. The counts reveal deletions. Deleting an ended evaluation that is not the newest does
# not change the state.
_STAMP = """
    SELECT create_index, version, modify_index, summary_index, status, stop, held,
           (SELECT max(modify_index) FROM evaluations INDEXED BY evaluations_by_job
             WHERE namespace = jobs.namespace AND job_id = jobs.id),
           (SELECT count(*) FROM evaluations INDEXED BY evaluations_unfinished
             WHERE namespace = jobs.namespace AND job_id = jobs.id
               AND status IN ('pending', 'blocked')),
           (SELECT max(modify_index) FROM allocations INDEXED BY allocations_of_job_changed
             WHERE namespace = jobs.namespace AND job_id = jobs.id),
           (SELECT count(*) FROM allocations INDEXED BY allocations_of_job_changed
             WHERE namespace = jobs.namespace AND job_id = jobs.id),
           (SELECT max(modify_index) FROM deployments INDEXED BY deployments_of_job_changed
             WHERE namespace = jobs.namespace AND job_id = jobs.id),
           (SELECT count(*) FROM deployments INDEXED BY deployments_of_job_changed
             WHERE namespace = jobs.namespace AND job_id = jobs.id)
      FROM jobs
     WHERE namespace = :namespace AND id = :job_id AND launches_children = 0
       AND NOT EXISTS (SELECT 1 FROM runs
                        WHERE namespace = jobs.namespace AND job_id = jobs.id)
       AND NOT EXISTS (SELECT 1 FROM frozen_jobs
                        WHERE namespace = jobs.namespace AND job_id = jobs.id)
"""


def load(db: ReadSnapshot, namespace: str, job_id: str) -> Stamp | None:
    """Return the stamp of a job.

    Return None for a job whose state also depends on other objects: on children, a run or a freeze.
    """
    row = db.one(_STAMP, {"namespace": namespace, "job_id": job_id})
    return tuple(row) if row else None
