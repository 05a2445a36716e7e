-- Indexes from which a page of a list starts at its key.
CREATE INDEX tokens_in_order             ON tokens (create_index, accessor);
CREATE INDEX allocations_of_job_in_order ON allocations (namespace, job_id, create_index, id);
CREATE INDEX allocations_of_job_changed  ON allocations (namespace, job_id, modify_index);
CREATE INDEX allocations_of_node_changed ON allocations (node_id, modify_index);
CREATE INDEX evaluations_of_job_in_order ON evaluations (namespace, job_id, create_index, id);
DROP INDEX deployments_by_job;
CREATE INDEX deployments_by_job          ON deployments (namespace, job_id, create_index, id);
CREATE INDEX deployments_of_job_changed  ON deployments (namespace, job_id, modify_index);
