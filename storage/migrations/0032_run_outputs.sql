-- Outputs of the steps of runs.
ALTER TABLE run_steps ADD COLUMN output_bytes INTEGER NOT NULL DEFAULT 0 CHECK (output_bytes >= 0);
CREATE TABLE run_outputs (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    step          TEXT    NOT NULL,
    element       INTEGER NOT NULL CHECK (element >= 0),
    alloc_id      TEXT    NOT NULL,
    outputs       TEXT    NOT NULL,
    size          INTEGER NOT NULL CHECK (size >= 0),
    PRIMARY KEY (namespace, job_id, number, step, element),
    FOREIGN KEY (namespace, job_id, number)
        REFERENCES runs (namespace, job_id, number) ON DELETE CASCADE
) STRICT;
