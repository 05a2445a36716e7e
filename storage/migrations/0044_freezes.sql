-- Freezes, and the jobs whose evaluation waits for the end of one.
CREATE TABLE freezes (
    id            TEXT    NOT NULL PRIMARY KEY,
    namespace     TEXT    NOT NULL,
    jobs          TEXT    NOT NULL,
    queue         TEXT    NOT NULL,
    strength      TEXT    NOT NULL CHECK (strength IN ('begin', 'steps', 'changes')),
    reason        TEXT    NOT NULL,
    person        TEXT    NOT NULL,
    begin         INTEGER NOT NULL,
    until         INTEGER NOT NULL,
    ended         INTEGER NOT NULL,
    ended_by      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX freezes_in_order ON freezes (create_index, id);
CREATE INDEX freezes_open ON freezes (namespace) WHERE ended = 0;
CREATE INDEX freezes_ended ON freezes (namespace, ended) WHERE ended > 0;
CREATE TABLE frozen_jobs (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    freeze_id     TEXT    NOT NULL,
    since         INTEGER NOT NULL,
    arrived       INTEGER NOT NULL,
    PRIMARY KEY (namespace, job_id),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX frozen_jobs_in_order ON frozen_jobs (freeze_id, arrived, namespace, job_id);
