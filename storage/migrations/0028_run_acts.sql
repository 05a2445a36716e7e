-- Manual operations on runs, and canceled runs whose clean-up still runs.
ALTER TABLE runs ADD COLUMN cleans_up INTEGER NOT NULL DEFAULT 0 CHECK (cleans_up IN (0, 1));
CREATE TABLE run_acts (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    place         INTEGER NOT NULL,
    act           TEXT    NOT NULL
                  CHECK (act IN ('cancel', 'skip', 'accept', 'rerun', 'approve', 'reject')),
    steps         TEXT    NOT NULL,
    attempt       INTEGER NOT NULL,
    who           TEXT    NOT NULL,
    note          TEXT    NOT NULL,
    time          INTEGER NOT NULL,
    PRIMARY KEY (namespace, job_id, number, place),
    FOREIGN KEY (namespace, job_id, number)
        REFERENCES runs (namespace, job_id, number) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
