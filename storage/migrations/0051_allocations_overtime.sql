-- Allocations that their `max_run_duration` ended. The state of a job names the limit.
CREATE INDEX allocations_overtime ON allocations (namespace, job_id, modify_index)
 WHERE client_status = 'complete'
   AND CASE WHEN json_valid(client) THEN client ->> '$.Description' END
           IS 'allocation exceeded max_run_duration';
