-- The person of a job version, for gates; idempotency tokens of operations; notifications about
-- gates.
ALTER TABLE job_version_states ADD COLUMN person TEXT NOT NULL DEFAULT '';
ALTER TABLE run_acts ADD COLUMN token TEXT NOT NULL DEFAULT '';
ALTER TABLE run_acts ADD COLUMN answer TEXT NOT NULL DEFAULT '';
CREATE UNIQUE INDEX run_acts_by_token ON run_acts (namespace, job_id, token) WHERE token <> '';
ALTER TABLE notifications RENAME TO notifications_before;
DROP INDEX notifications_by_job;
DROP INDEX notifications_pending;
DROP INDEX notifications_by_receiver;
DROP INDEX notifications_by_time;
CREATE TABLE notifications (
    number        INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    run_id        TEXT    NOT NULL,
    event         TEXT    NOT NULL
                  CHECK (event IN ('failure', 'recovery', 'missed', 'late', 'approval')),
    reason        TEXT    NOT NULL,
    webhook       TEXT    NOT NULL,
    command       TEXT    NOT NULL,
    status        TEXT    NOT NULL CHECK (status IN ('pending', 'sent', 'failed')),
    attempts      INTEGER NOT NULL CHECK (attempts >= 0),
    next_attempt  INTEGER NOT NULL,
    error         TEXT    NOT NULL,
    create_time   INTEGER NOT NULL,
    modify_time   INTEGER NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL,
    receiver      TEXT    NOT NULL DEFAULT '',
    failures      INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
    failing_since INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO notifications
SELECT number, namespace, job_id, run_id, event, reason, webhook, command, status, attempts,
       next_attempt, error, create_time, modify_time, create_index, modify_index, receiver,
       failures, failing_since
  FROM notifications_before;
DELETE FROM sqlite_sequence WHERE name = 'notifications';
UPDATE sqlite_sequence SET name = 'notifications' WHERE name = 'notifications_before';
DROP TABLE notifications_before;
CREATE INDEX notifications_by_job  ON notifications (namespace, job_id, number);
CREATE INDEX notifications_pending ON notifications (namespace, job_id, next_attempt)
                                   WHERE status = 'pending' AND receiver = '';
CREATE INDEX notifications_by_receiver ON notifications (receiver, next_attempt)
                                       WHERE status = 'pending' AND receiver > '';
CREATE INDEX notifications_by_time ON notifications (next_attempt) WHERE status = 'pending';
