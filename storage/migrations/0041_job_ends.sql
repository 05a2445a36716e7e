-- The last end of each batch job that others follow. Before, only the ledgers had it.
CREATE TABLE job_ends (
    namespace        TEXT    NOT NULL,
    job_id           TEXT    NOT NULL,
    version          INTEGER NOT NULL CHECK (version >= 0),
    attempt          INTEGER NOT NULL CHECK (attempt >= 1),
    status           TEXT    NOT NULL CHECK (status IN ('succeeded', 'failed', 'canceled')),
    newest           INTEGER NOT NULL,
    PRIMARY KEY (namespace, job_id),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
INSERT INTO job_ends
SELECT e.namespace, e.job_id, e.version, 1, e.status,
       (SELECT coalesce(max(a.create_index), 0) FROM allocations a
         WHERE a.namespace = e.namespace AND a.job_id = e.job_id AND a.job_version = e.version)
  FROM (SELECT t.source_namespace AS namespace, t.run_job_id AS job_id, max(t.version) AS version,
               t.status AS status
          FROM triggers t
          JOIN jobs j ON j.namespace = t.source_namespace AND j.id = t.run_job_id
         WHERE t.number = t.version
           AND NOT EXISTS (SELECT 1 FROM runs r
                            WHERE r.namespace = t.source_namespace AND r.job_id = t.run_job_id)
      GROUP BY t.source_namespace, t.run_job_id) e;
