-- Runs of workflows, and their steps.
CREATE TABLE runs (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    number        INTEGER NOT NULL CHECK (number >= 1),
    version       INTEGER NOT NULL,
    status        TEXT    NOT NULL
                  CHECK (status IN ('running', 'stopping', 'succeeded', 'failed', 'canceled')),
    reason        TEXT    NOT NULL,
    triggered_by  TEXT    NOT NULL,
    attempt       INTEGER NOT NULL CHECK (attempt >= 1),
    began         INTEGER NOT NULL,
    ended         INTEGER NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL,
    PRIMARY KEY (namespace, job_id, number),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT;
CREATE INDEX runs_unfinished ON runs (namespace, job_id)
                             WHERE status IN ('running', 'stopping');
CREATE INDEX runs_in_order   ON runs (create_index, job_id);
CREATE TABLE run_steps (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    step          TEXT    NOT NULL,
    place         INTEGER NOT NULL,
    state         TEXT    NOT NULL
                  CHECK (state IN
                         ('waiting', 'held', 'open', 'succeeded', 'failed', 'skipped', 'canceled')),
    reason        TEXT    NOT NULL,
    outcome       TEXT    CHECK (outcome IN ('good', 'bad', 'neutral')),
    attempt       INTEGER NOT NULL CHECK (attempt >= 1),
    since         INTEGER NOT NULL,
    opened        INTEGER NOT NULL,
    total         INTEGER NOT NULL CHECK (total >= 0),
    good          INTEGER NOT NULL CHECK (good >= 0),
    failed        INTEGER NOT NULL CHECK (failed >= 0),
    exit_code     INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL,
    PRIMARY KEY (namespace, job_id, number, step),
    FOREIGN KEY (namespace, job_id, number)
        REFERENCES runs (namespace, job_id, number) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
