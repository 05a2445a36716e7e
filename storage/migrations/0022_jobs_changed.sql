-- An index from which a page of all jobs, including children, starts at a change.
CREATE INDEX jobs_changed ON jobs (modify_index, namespace, id);
