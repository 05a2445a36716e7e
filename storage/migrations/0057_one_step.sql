-- Runs of one step, and the operation that begins them.
ALTER TABLE runs ADD COLUMN only_step TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN only_element INTEGER CHECK (only_element >= 0);
ALTER TABLE runs ADD COLUMN outputs_of INTEGER NOT NULL DEFAULT 0 CHECK (outputs_of >= 0);
ALTER TABLE run_acts RENAME TO run_acts_before;
DROP INDEX run_acts_by_token;
CREATE TABLE run_acts (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    place         INTEGER NOT NULL,
    act           TEXT    NOT NULL
                  CHECK (act IN ('cancel', 'skip', 'accept', 'rerun', 'approve', 'reject',
                                 'step')),
    steps         TEXT    NOT NULL,
    attempt       INTEGER NOT NULL,
    who           TEXT    NOT NULL,
    note          TEXT    NOT NULL,
    time          INTEGER NOT NULL,
    token         TEXT    NOT NULL DEFAULT '',
    answer        TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (namespace, job_id, number, place),
    FOREIGN KEY (namespace, job_id, number)
        REFERENCES runs (namespace, job_id, number) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
INSERT INTO run_acts
SELECT namespace, job_id, number, place, act, steps, attempt, who, note, time, token, answer
  FROM run_acts_before;
DROP TABLE run_acts_before;
CREATE UNIQUE INDEX run_acts_by_token ON run_acts (namespace, job_id, token) WHERE token <> '';
