-- Allocations that are stopping.
CREATE INDEX allocations_ending ON allocations (namespace, job_id)
                                WHERE desired_status <> 'run'
                                  AND client_status IN ('pending', 'running', 'unknown');
