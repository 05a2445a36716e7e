-- Queues that changed, so that the loop does not check all of them.
CREATE TABLE queues_changed (
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;
INSERT INTO queues_changed
SELECT DISTINCT namespace, name FROM queue_entries WHERE state = 'waiting';
