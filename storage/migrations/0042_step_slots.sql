-- Queues of steps, and the use of each queue: for runs or for steps.
CREATE TABLE step_slots (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    step          TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    place         INTEGER NOT NULL,
    slots         INTEGER NOT NULL CHECK (slots >= 1),
    wanted        INTEGER NOT NULL CHECK (wanted >= held),
    held          INTEGER NOT NULL CHECK (held >= 0),
    busy          INTEGER NOT NULL CHECK (busy BETWEEN 0 AND held),
    priority      INTEGER NOT NULL,
    arrived       INTEGER NOT NULL,
    since         INTEGER NOT NULL,
    PRIMARY KEY (namespace, job_id, number, step, name),
    FOREIGN KEY (namespace, job_id, number, step)
        REFERENCES run_steps (namespace, job_id, number, step) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX step_slots_waiting ON step_slots
    (namespace, name, priority DESC, arrived, job_id, number, place) WHERE wanted > held;
CREATE INDEX step_slots_holding ON step_slots
    (namespace, name, arrived, job_id, number, place, slots, held) WHERE held > 0;

CREATE TABLE queue_users (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    kind          TEXT    NOT NULL CHECK (kind IN ('runs', 'steps')),
    PRIMARY KEY (namespace, job_id, name),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX queue_users_by_name ON queue_users (namespace, name, kind, job_id);
INSERT INTO queue_users
SELECT j.namespace, j.id, v.document ->> '$.Meta.steward_run_concurrency', 'runs'
  FROM jobs j
  JOIN job_versions v ON v.namespace = j.namespace AND v.job_id = j.id AND v.version = j.version
 WHERE v.document ->> '$.Meta.steward_run_concurrency' NOT LIKE '%${%';
INSERT INTO queue_users
SELECT namespace, job_id, name, 'runs' FROM queue_entries WHERE true
    ON CONFLICT DO NOTHING;
