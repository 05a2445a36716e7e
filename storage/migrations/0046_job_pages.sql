-- Indexes of the newest children of a job, and of jobs that may have failed.
CREATE INDEX jobs_by_creation ON jobs (namespace, parent_id, create_index, id)
                        WHERE parent_id <> '';
CREATE INDEX jobs_failed ON jobs (modify_index, namespace, id)
                   WHERE stop = 0 AND (type NOT IN ('batch', 'sysbatch')
                                       OR summary GLOB '*"Failed":[1-9]*'
                                       OR summary GLOB '*"Lost":[1-9]*');
