-- Queues that the loop has to serve, so that it does not look at all of them.
CREATE TABLE queues_changed (
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;
INSERT INTO queues_changed
SELECT DISTINCT namespace, name FROM queue_entries WHERE state = 'waiting';
