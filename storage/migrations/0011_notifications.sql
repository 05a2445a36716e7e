-- Notifications about a job.
ALTER TABLE jobs ADD COLUMN notify TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN outcome TEXT NOT NULL DEFAULT '' CHECK (outcome IN ('', 'good', 'failed'));

CREATE TABLE notifications (
    number        INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,               -- job with the setting: of a child, the parent
    run_id        TEXT    NOT NULL,               -- the reported job
    event         TEXT    NOT NULL CHECK (event IN ('failure', 'recovery', 'missed', 'late')),
    reason        TEXT    NOT NULL,
    webhook       TEXT    NOT NULL,               -- URL, or
    command       TEXT    NOT NULL,               -- name of a command; the other column is empty
    status        TEXT    NOT NULL CHECK (status IN ('pending', 'sent', 'failed')),
    attempts      INTEGER NOT NULL CHECK (attempts >= 0),
    next_attempt  INTEGER NOT NULL,
    error         TEXT    NOT NULL,               -- of the last attempt
    create_time   INTEGER NOT NULL,
    modify_time   INTEGER NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL
) STRICT;

CREATE INDEX notifications_by_job  ON notifications (namespace, job_id, number);
CREATE INDEX notifications_pending ON notifications (namespace, job_id, next_attempt)
                                   WHERE status = 'pending';
CREATE INDEX notifications_by_time ON notifications (next_attempt) WHERE status = 'pending';
