-- Usage over time: the measured objects, and blocks of samples.
CREATE TABLE usage_series (
    id            INTEGER NOT NULL PRIMARY KEY,
    kind          TEXT    NOT NULL CHECK (kind IN ('node', 'job', 'alloc')),
    namespace     TEXT    NOT NULL,
    owner         TEXT    NOT NULL,
    task          TEXT    NOT NULL,
    last          INTEGER NOT NULL,
    UNIQUE (kind, namespace, owner, task)
) STRICT;
CREATE INDEX usage_series_by_age ON usage_series (kind, last);
CREATE TABLE usage_blocks (
    series        INTEGER NOT NULL REFERENCES usage_series (id) ON DELETE CASCADE,
    step          INTEGER NOT NULL CHECK (step IN (10, 300)),
    begin         INTEGER NOT NULL,
    data          BLOB    NOT NULL,
    PRIMARY KEY (series, step, begin)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_blocks_by_age ON usage_blocks (step, begin);
