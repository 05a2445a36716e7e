-- Allocations that exceeded their max_run_duration count as failed elements of their step.
DROP INDEX allocations_settled;
DROP INDEX allocations_unsettled;
CREATE INDEX allocations_settled ON allocations
    (namespace, job_id, task_group, job_version,
     CAST(substr(name, length(job_id) + length(task_group) + 3) AS INTEGER))
 WHERE job_type = 'batch' AND desired_status = 'run' AND client_status = 'complete'
   AND CASE WHEN json_valid(desired) THEN desired ->> '$.NextAllocation' END IS NULL
   AND CASE WHEN json_valid(client) THEN client ->> '$.Description' END
           IS NOT 'allocation exceeded max_run_duration';
CREATE INDEX allocations_unsettled ON allocations (namespace, job_id, create_index, id)
 WHERE (desired_status = 'run'
        OR client_status IN ('pending', 'running', 'unknown')
        OR CASE WHEN json_valid(desired)
                THEN desired ->> '$.Transition.MigrateDisablePlacement' END)
   AND NOT (job_type = 'batch' AND desired_status = 'run' AND client_status = 'complete'
            AND CASE WHEN json_valid(desired) THEN desired ->> '$.NextAllocation' END IS NULL
            AND CASE WHEN json_valid(client) THEN client ->> '$.Description' END
           IS NOT 'allocation exceeded max_run_duration');
