-- The scheduler no longer reads each completed allocation of a batch job.
CREATE INDEX allocations_settled ON allocations
    (namespace, job_id, task_group, job_version,
     CAST(substr(name, length(job_id) + length(task_group) + 3) AS INTEGER))
 WHERE job_type = 'batch' AND desired_status = 'run' AND client_status = 'complete'
   AND desired ->> '$.NextAllocation' IS NULL;
CREATE INDEX allocations_unsettled ON allocations (namespace, job_id, create_index, id)
 WHERE (desired_status = 'run'
        OR client_status IN ('pending', 'running', 'unknown')
        OR desired ->> '$.Transition.MigrateDisablePlacement')
   AND NOT (job_type = 'batch' AND desired_status = 'run' AND client_status = 'complete'
            AND desired ->> '$.NextAllocation' IS NULL);
