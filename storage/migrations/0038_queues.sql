-- Queues of runs, their slots, and the runs that hold slots or wait for them.
CREATE TABLE queues (
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    slots         INTEGER NOT NULL CHECK (slots >= 1),
    note          TEXT    NOT NULL,
    modify_index  INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE queue_entries (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    name          TEXT    NOT NULL,
    parent_id     TEXT    NOT NULL,
    slots         INTEGER NOT NULL CHECK (slots >= 1),
    state         TEXT    NOT NULL CHECK (state IN ('waiting', 'holding')),
    priority      INTEGER NOT NULL,
    beyond        TEXT    NOT NULL
                  CHECK (beyond IN ('queue', 'skip', 'newest', 'cancel-oldest')),
    arrived       INTEGER NOT NULL,
    since         INTEGER NOT NULL,
    PRIMARY KEY (namespace, job_id, number),
    FOREIGN KEY (namespace, job_id, number)
        REFERENCES runs (namespace, job_id, number) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX queue_entries_waiting ON queue_entries
    (namespace, name, priority DESC, arrived, job_id) WHERE state = 'waiting';
CREATE INDEX queue_entries_holding ON queue_entries (namespace, name, arrived, job_id, slots)
    WHERE state = 'holding';
CREATE INDEX queue_entries_eager ON queue_entries (namespace, name, arrived)
    WHERE state = 'waiting' AND beyond <> 'queue';
CREATE INDEX queue_entries_by_owner ON queue_entries
    (namespace, name, state, coalesce(nullif(parent_id, ''), job_id), arrived);
