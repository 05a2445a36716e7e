-- The jobs that start after other jobs (meta key `steward_after`), and the ledger of ended runs.
CREATE TABLE job_sources (
    namespace        TEXT    NOT NULL,
    job_id           TEXT    NOT NULL,
    source_namespace TEXT    NOT NULL,
    source_id        TEXT    NOT NULL,
    place            INTEGER NOT NULL,
    wanted           TEXT    NOT NULL CHECK (wanted IN ('success', 'failure', 'any')),
    since            INTEGER NOT NULL,
    PRIMARY KEY (namespace, job_id, source_namespace, source_id),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX job_sources_by_source ON job_sources (source_namespace, source_id);
CREATE TABLE triggers (
    id               INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    namespace        TEXT    NOT NULL,
    job_id           TEXT    NOT NULL,
    source_namespace TEXT    NOT NULL,
    source_id        TEXT    NOT NULL,
    run_job_id       TEXT    NOT NULL,
    number           INTEGER NOT NULL CHECK (number >= 0),
    version          INTEGER NOT NULL CHECK (version >= 0),
    attempt          INTEGER NOT NULL CHECK (attempt >= 1),
    status           TEXT    NOT NULL CHECK (status IN ('succeeded', 'failed', 'canceled')),
    state            TEXT    NOT NULL
                     CHECK (state IN ('arrived', 'waiting', 'fired', 'ignored', 'refused',
                                      'replaced', 'expired')),
    reason           TEXT    NOT NULL,
    value            TEXT    NOT NULL,
    child_id         TEXT    NOT NULL,
    depth            INTEGER NOT NULL CHECK (depth >= 1),
    ended            INTEGER NOT NULL,
    decided          INTEGER NOT NULL,
    expires          INTEGER NOT NULL,
    create_index     INTEGER NOT NULL,
    modify_index     INTEGER NOT NULL,
    meta             TEXT    NOT NULL DEFAULT '{}',
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT;
CREATE UNIQUE INDEX triggers_once ON triggers
    (namespace, job_id, source_namespace, run_job_id, number, attempt);
CREATE INDEX triggers_by_job ON triggers (namespace, job_id, id);
CREATE INDEX triggers_by_child ON triggers (namespace, child_id) WHERE child_id <> '';
CREATE INDEX triggers_arrived ON triggers (id) WHERE state = 'arrived';
CREATE INDEX triggers_expiring ON triggers (expires) WHERE state = 'waiting';
CREATE INDEX triggers_waiting ON triggers (namespace, job_id, value) WHERE state = 'waiting';
CREATE INDEX triggers_unfinished ON triggers (namespace, job_id)
    WHERE state IN ('arrived', 'waiting');
CREATE TABLE trigger_totals (
    state  TEXT    NOT NULL PRIMARY KEY,
    number INTEGER NOT NULL CHECK (number >= 0)
) STRICT, WITHOUT ROWID;
