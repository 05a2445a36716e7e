-- Input files of dispatched jobs.
CREATE TABLE payload_files (
    namespace     TEXT    NOT NULL,
    digest        TEXT    NOT NULL CHECK (length(digest) = 64),
    size          INTEGER NOT NULL CHECK (size >= 0),
    is_complete   INTEGER NOT NULL CHECK (is_complete IN (0, 1)),
    modify_time   INTEGER NOT NULL,
    PRIMARY KEY (namespace, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX payload_files_by_time ON payload_files (modify_time);

CREATE TABLE job_files (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    digest        TEXT    NOT NULL,
    PRIMARY KEY (namespace, job_id, name),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE,
    FOREIGN KEY (namespace, digest) REFERENCES payload_files (namespace, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX job_files_by_digest ON job_files (namespace, digest);
