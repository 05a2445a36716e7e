-- An index of the jobs without a parent, ordered by namespace and ID.
CREATE INDEX jobs_by_name ON jobs (namespace, id, modify_index) WHERE parent_id IS '';
