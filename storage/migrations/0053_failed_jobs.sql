-- A page of failed jobs reads only failed jobs, not all failed runs and allocations.
ALTER TABLE jobs ADD COLUMN has_failed_run INTEGER NOT NULL DEFAULT 0
                                           CHECK (has_failed_run IN (0, 1));
UPDATE jobs SET has_failed_run = 1
 WHERE (namespace, id) IN (SELECT namespace, job_id FROM runs WHERE status = 'failed')
    OR (namespace, id) IN (SELECT namespace, job_id FROM allocations
                            WHERE client_status = 'complete'
                              AND CASE WHEN json_valid(client) THEN client ->> '$.Description' END
                                  IS 'allocation exceeded max_run_duration');
DROP INDEX jobs_failed;
-- storage/queries/job_listings.py has the same condition. A page reads either all jobs, or the jobs
-- without a parent, which are few among failed children.
CREATE INDEX jobs_failed ON jobs (type, modify_index, namespace, id)
                   WHERE stop = 0 AND (type NOT IN ('batch', 'sysbatch') OR has_failed_run = 1
                                       OR summary GLOB '*"Failed":[1-9]*'
                                       OR summary GLOB '*"Lost":[1-9]*');
CREATE INDEX jobs_failed_by_name ON jobs (namespace, id, modify_index, type)
                   WHERE stop = 0 AND (type NOT IN ('batch', 'sysbatch') OR has_failed_run = 1
                                       OR summary GLOB '*"Failed":[1-9]*'
                                       OR summary GLOB '*"Lost":[1-9]*');
CREATE INDEX jobs_failed_top_level ON jobs (type, modify_index, namespace, id)
                   WHERE parent_id IS ''
                     AND stop = 0 AND (type NOT IN ('batch', 'sysbatch') OR has_failed_run = 1
                                       OR summary GLOB '*"Failed":[1-9]*'
                                       OR summary GLOB '*"Lost":[1-9]*');
CREATE INDEX jobs_failed_top_level_by_name ON jobs (namespace, id, modify_index, type)
                   WHERE parent_id IS ''
                     AND stop = 0 AND (type NOT IN ('batch', 'sysbatch') OR has_failed_run = 1
                                       OR summary GLOB '*"Failed":[1-9]*'
                                       OR summary GLOB '*"Lost":[1-9]*');
-- Failed allocations that were not replaced: notifications name the newest one.
CREATE INDEX allocations_failed ON allocations (namespace, job_id, job_version, modify_index)
 WHERE desired_status = 'run'
   AND CASE WHEN json_valid(desired) THEN desired ->> '$.NextAllocation' END IS NULL
   AND (client_status IN ('failed', 'lost')
        OR client_status = 'complete'
           AND CASE WHEN json_valid(client) THEN client ->> '$.Description' END
               IS 'allocation exceeded max_run_duration');
CREATE TRIGGER allocations_begin_overtime AFTER INSERT ON allocations
WHEN NEW.client_status = 'complete'
     AND CASE WHEN json_valid(NEW.client) THEN NEW.client ->> '$.Description' END
         IS 'allocation exceeded max_run_duration'
BEGIN
    UPDATE jobs SET has_failed_run = 1 WHERE namespace = NEW.namespace AND id = NEW.job_id;
END;
CREATE TRIGGER allocations_become_overtime AFTER UPDATE OF client_status, client ON allocations
WHEN NEW.client_status = 'complete'
     AND CASE WHEN json_valid(NEW.client) THEN NEW.client ->> '$.Description' END
         IS 'allocation exceeded max_run_duration'
BEGIN
    UPDATE jobs SET has_failed_run = 1 WHERE namespace = NEW.namespace AND id = NEW.job_id;
END;
CREATE TRIGGER runs_begin_failed AFTER INSERT ON runs
WHEN NEW.status = 'failed'
BEGIN
    UPDATE jobs SET has_failed_run = 1 WHERE namespace = NEW.namespace AND id = NEW.job_id;
END;
CREATE TRIGGER runs_fail AFTER UPDATE OF status ON runs
WHEN NEW.status = 'failed'
BEGIN
    UPDATE jobs SET has_failed_run = 1 WHERE namespace = NEW.namespace AND id = NEW.job_id;
END;
