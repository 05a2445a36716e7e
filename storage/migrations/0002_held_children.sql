-- Queued children of a job, and its ended children.
ALTER TABLE jobs ADD COLUMN held INTEGER NOT NULL DEFAULT 0 CHECK (held IN (0, 1));

CREATE INDEX jobs_at_work ON jobs (namespace, parent_id, create_index)
                    WHERE parent_id <> '' AND held = 0 AND status <> 'dead';
CREATE INDEX jobs_held ON jobs (namespace, parent_id, create_index) WHERE held = 1;
CREATE INDEX jobs_ended_children ON jobs (namespace, parent_id, modify_index)
                           WHERE parent_id <> '' AND status = 'dead';
CREATE INDEX jobs_parents ON jobs (namespace, id) WHERE launches_children = 1;
