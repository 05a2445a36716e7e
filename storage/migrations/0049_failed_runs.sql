-- Failed runs, whose jobs may have no failed allocation.
CREATE INDEX runs_failed ON runs (namespace, job_id) WHERE status = 'failed';
