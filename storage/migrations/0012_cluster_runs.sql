-- Attempts at tasks that are jobs of a cluster.
CREATE TABLE cluster_runs (
    allocation_id TEXT    NOT NULL,               -- which may be forgotten before the job has ended
    task          TEXT    NOT NULL,
    number        INTEGER NOT NULL CHECK (number >= 0),
    pool          TEXT    NOT NULL,
    status        TEXT    NOT NULL CHECK (status IN ('submitting', 'waiting', 'running', 'ended', 'void')),
    claim_hash    TEXT    NOT NULL,
    token_hash    TEXT    NOT NULL,               -- of who has claimed it; empty: nobody
    nonce         TEXT    NOT NULL,               -- by which the claimant named itself
    job_id        TEXT    NOT NULL,               -- of the cluster; empty: not known
    host          TEXT    NOT NULL,               -- where it runs
    submitted_at  INTEGER NOT NULL,
    claimed_at    INTEGER NOT NULL,
    stdout_base   INTEGER NOT NULL,               -- where in the task's log its own output begins
    stderr_base   INTEGER NOT NULL,
    result        TEXT    NOT NULL,               -- how it ended, as the wrapper said; empty: not yet
    PRIMARY KEY (allocation_id, task, number)
) STRICT, WITHOUT ROWID;

CREATE INDEX cluster_runs_void ON cluster_runs (pool) WHERE status = 'void';
