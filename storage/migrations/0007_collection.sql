-- Garbage collection: counts, indexes, and deletion of a large job in several writes.
ALTER TABLE jobs ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0 CHECK (forgotten IN (0, 1));

CREATE TABLE collected (
    kind          TEXT    NOT NULL PRIMARY KEY,
    number        INTEGER NOT NULL CHECK (number >= 0)
) STRICT, WITHOUT ROWID;

CREATE INDEX allocations_replaced      ON allocations (namespace, job_id, modify_time)
                                       WHERE client_status IN ('complete', 'failed', 'lost')
                                         AND (desired ->> '$.NextAllocation' IS NOT NULL
                                              OR desired_status <> 'run'
                                                 AND job_type NOT IN ('batch', 'sysbatch'));
