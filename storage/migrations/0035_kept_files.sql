-- Files of tasks that `steward_keep` retains.
CREATE TABLE kept_files (
    alloc_id      TEXT    NOT NULL,
    task          TEXT    NOT NULL,
    path          TEXT    NOT NULL,
    namespace     TEXT    NOT NULL,
    digest        TEXT    NOT NULL,
    PRIMARY KEY (alloc_id, task, path),
    FOREIGN KEY (alloc_id) REFERENCES allocations (id) ON DELETE CASCADE,
    FOREIGN KEY (namespace, digest) REFERENCES payload_files (namespace, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX kept_files_by_digest ON kept_files (namespace, digest);
