-- A stopped job keeps its scaling policies, disabled: listings show them.
DROP INDEX jobs_scaled;
CREATE INDEX jobs_scaled ON jobs (namespace, id) WHERE has_scaling = 1;
