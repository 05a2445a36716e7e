-- Each change of a job evaluated the search in its summary again, for four indexes. For a job of a
-- hundred groups, that took 0.35 ms. A column replaces the search.
ALTER TABLE jobs ADD COLUMN has_failed_allocation INTEGER NOT NULL DEFAULT 0
                                                  CHECK (has_failed_allocation IN (0, 1));
UPDATE jobs SET has_failed_allocation = 1
 WHERE summary GLOB '*"Failed":[1-9]*' OR summary GLOB '*"Lost":[1-9]*';
DROP INDEX jobs_failed;
DROP INDEX jobs_failed_by_name;
DROP INDEX jobs_failed_top_level;
DROP INDEX jobs_failed_top_level_by_name;
CREATE INDEX jobs_failed ON jobs (type, modify_index, namespace, id)
                   WHERE stop = 0 AND (type NOT IN ('batch', 'sysbatch') OR has_failed_run = 1
                                       OR has_failed_allocation = 1);
CREATE INDEX jobs_failed_by_name ON jobs (namespace, id, modify_index, type)
                   WHERE stop = 0 AND (type NOT IN ('batch', 'sysbatch') OR has_failed_run = 1
                                       OR has_failed_allocation = 1);
CREATE INDEX jobs_failed_top_level ON jobs (type, modify_index, namespace, id)
                   WHERE parent_id IS ''
                     AND stop = 0 AND (type NOT IN ('batch', 'sysbatch') OR has_failed_run = 1
                                       OR has_failed_allocation = 1);
CREATE INDEX jobs_failed_top_level_by_name ON jobs (namespace, id, modify_index, type)
                   WHERE parent_id IS ''
                     AND stop = 0 AND (type NOT IN ('batch', 'sysbatch') OR has_failed_run = 1
                                       OR has_failed_allocation = 1);
