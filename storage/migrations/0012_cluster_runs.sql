-- Attempts of tasks that run as jobs of a cluster.
CREATE TABLE cluster_runs (
    allocation_id TEXT    NOT NULL,               -- it may be deleted before the cluster's job ends
    task          TEXT    NOT NULL,
    number        INTEGER NOT NULL CHECK (number >= 0),
    pool          TEXT    NOT NULL,
    status        TEXT    NOT NULL CHECK (status IN ('submitting', 'waiting', 'running', 'ended', 'void')),
    claim_hash    TEXT    NOT NULL,
    token_hash    TEXT    NOT NULL,               -- of the claimant; empty: not claimed
    nonce         TEXT    NOT NULL,               -- random name of the claimant
    job_id        TEXT    NOT NULL,               -- ID in the cluster; empty: unknown
    host          TEXT    NOT NULL,               -- host on which it runs
    submitted_at  INTEGER NOT NULL,
    claimed_at    INTEGER NOT NULL,
    stdout_base   INTEGER NOT NULL,               -- offset of its output in the task's log
    stderr_base   INTEGER NOT NULL,
    result        TEXT    NOT NULL,               -- reported by the wrapper; empty: none yet
    PRIMARY KEY (allocation_id, task, number)
) STRICT, WITHOUT ROWID;

CREATE INDEX cluster_runs_void ON cluster_runs (pool) WHERE status = 'void';
