-- Faults of the daemon's internal work, which survive a restart.
CREATE TABLE faults (
    kind          TEXT    NOT NULL,
    key           TEXT    NOT NULL,
    failures      INTEGER NOT NULL CHECK (failures >= 1),
    reason        TEXT    NOT NULL,
    since         INTEGER NOT NULL,
    until         INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;
