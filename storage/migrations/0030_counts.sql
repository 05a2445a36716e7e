-- The number of allocations of each node by client status, so that metrics read few rows.
-- Maintained by triggers on allocations.
CREATE TABLE allocation_counts (
    node_id       TEXT    NOT NULL,
    client_status TEXT    NOT NULL,
    number        INTEGER NOT NULL CHECK (number >= 0),
    PRIMARY KEY (node_id, client_status)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER allocations_are_counted AFTER INSERT ON allocations
BEGIN
    INSERT INTO allocation_counts VALUES (NEW.node_id, NEW.client_status, 1)
        ON CONFLICT (node_id, client_status) DO UPDATE SET number = number + 1;
END;
CREATE TRIGGER allocations_change_counts AFTER UPDATE OF client_status ON allocations
WHEN OLD.client_status <> NEW.client_status
BEGIN
    UPDATE allocation_counts SET number = number - 1
     WHERE node_id = OLD.node_id AND client_status = OLD.client_status;
    INSERT INTO allocation_counts VALUES (NEW.node_id, NEW.client_status, 1)
        ON CONFLICT (node_id, client_status) DO UPDATE SET number = number + 1;
END;
CREATE TRIGGER allocations_leave_counts AFTER DELETE ON allocations
BEGIN
    UPDATE allocation_counts SET number = number - 1
     WHERE node_id = OLD.node_id AND client_status = OLD.client_status;
END;

-- The number of jobs by status, for metrics. Maintained by triggers on jobs.
CREATE TABLE job_counts (
    status TEXT    PRIMARY KEY,
    number INTEGER NOT NULL CHECK (number >= 0)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER jobs_are_counted AFTER INSERT ON jobs
BEGIN
    INSERT INTO job_counts VALUES (NEW.status, 1)
        ON CONFLICT (status) DO UPDATE SET number = number + 1;
END;
CREATE TRIGGER jobs_change_counts AFTER UPDATE OF status ON jobs
WHEN OLD.status <> NEW.status
BEGIN
    UPDATE job_counts SET number = number - 1 WHERE status = OLD.status;
    INSERT INTO job_counts VALUES (NEW.status, 1)
        ON CONFLICT (status) DO UPDATE SET number = number + 1;
END;
CREATE TRIGGER jobs_leave_counts AFTER DELETE ON jobs
BEGIN
    UPDATE job_counts SET number = number - 1 WHERE status = OLD.status;
END;

INSERT INTO allocation_counts
SELECT node_id, client_status, count(*) FROM allocations GROUP BY node_id, client_status;
INSERT INTO job_counts
SELECT status, count(*) FROM jobs GROUP BY status;
