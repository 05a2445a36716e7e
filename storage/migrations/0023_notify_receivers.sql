-- Consecutive failures of a job, receivers in the configuration, and results of notifications.
ALTER TABLE jobs ADD COLUMN failures INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0);
ALTER TABLE jobs ADD COLUMN failing_since INTEGER NOT NULL DEFAULT 0;
ALTER TABLE notifications ADD COLUMN receiver TEXT NOT NULL DEFAULT '';
ALTER TABLE notifications ADD COLUMN failures INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0);
ALTER TABLE notifications ADD COLUMN failing_since INTEGER NOT NULL DEFAULT 0;
DROP INDEX notifications_pending;
CREATE INDEX notifications_pending ON notifications (namespace, job_id, next_attempt)
                                   WHERE status = 'pending' AND receiver = '';
CREATE INDEX notifications_by_receiver ON notifications (receiver, next_attempt)
                                       WHERE status = 'pending' AND receiver > '';
CREATE TABLE notification_totals (
    receiver      TEXT    NOT NULL,
    outcome       TEXT    NOT NULL CHECK (outcome IN ('sent', 'failed', 'dropped')),
    number        INTEGER NOT NULL CHECK (number >= 0),
    PRIMARY KEY (receiver, outcome)
) STRICT, WITHOUT ROWID;
