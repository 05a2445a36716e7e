-- A page of all jobs, children too, begins at a change.
CREATE INDEX jobs_changed ON jobs (modify_index, namespace, id);
