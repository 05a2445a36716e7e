-- Stopped allocations of batch jobs are garbage-collected. An index finds the allocations that the
-- scheduler reads.
DROP INDEX allocations_replaced;
CREATE INDEX allocations_replaced      ON allocations (namespace, job_id, modify_time)
                                       WHERE client_status IN ('complete', 'failed', 'lost')
                                         AND (desired ->> '$.NextAllocation' IS NOT NULL
                                              OR desired_status <> 'run' AND job_type <> 'sysbatch'
                                                 AND desired ->> '$.Transition.MigrateDisablePlacement' IS NOT 1);

CREATE INDEX allocations_considered    ON allocations (namespace, job_id, create_index, id)
                                       WHERE desired_status = 'run'
                                          OR client_status IN ('pending', 'running', 'unknown')
                                          OR desired ->> '$.Transition.MigrateDisablePlacement';
