-- The schema of Steward's store. The comment of each table describes a row, and the code that
-- writes it.
--
-- Each write has an index: the value of the counter in `store`. A row has the index of the write
-- that created it, and of the write that changed it last. Documents are JSON in the format of
-- the API; queried fields also have a column. Times are nanoseconds since the epoch.

-- One row: the counter of all writes, and the identity of this installation. Changed by every
-- write.
CREATE TABLE store (
    id            INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    last_index    INTEGER NOT NULL CHECK (last_index >= 1),
    cluster_id    TEXT    NOT NULL,
    created_at    INTEGER NOT NULL
) STRICT;

-- For each kind of object, the index of the last write that changed or deleted an object of this
-- kind. Lists report this index, and a blocking query for a missing object waits for it. `room`
-- changes when an allocation releases resources. `collected-events` is the index up to which events
-- were deleted.
CREATE TABLE table_indexes (
    name          TEXT    NOT NULL PRIMARY KEY,
    last_index    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The counter at recorded times. It gives the age of a change. Written and trimmed by
-- daemon/evals/gc.py, one row per round.
CREATE TABLE moments (
    time          INTEGER NOT NULL PRIMARY KEY,
    last_index    INTEGER NOT NULL
) STRICT;

-- The number of rows of each kind that retention has deleted. Written by daemon/evals/gc.py with
-- the deletion.
CREATE TABLE collected (
    kind          TEXT    NOT NULL PRIMARY KEY,
    number        INTEGER NOT NULL CHECK (number >= 0)
) STRICT, WITHOUT ROWID;

-- Namespaces separate the jobs of different users. Written by the namespace endpoints.
CREATE TABLE namespaces (
    name          TEXT    NOT NULL PRIMARY KEY,
    document      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Node pools that users created. The built-in pools `all` and `default` have no row. Written by
-- the pool endpoints.
CREATE TABLE node_pools (
    name          TEXT    NOT NULL PRIMARY KEY,
    document      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Existing jobs: the current version, the status, and the entry in lists. A row appears with the
-- first version. A purge deletes it with everything that belongs to the job. Written by
-- daemon/jobs. Status and counts are written by one function (storage/queries/job_status.py
-- refresh_summary), in every write that can change them.
CREATE TABLE jobs (
    namespace         TEXT    NOT NULL,
    id                TEXT    NOT NULL,
    version           INTEGER NOT NULL CHECK (version >= 0),
    type              TEXT    NOT NULL,
    parent_id         TEXT    NOT NULL,
    dispatch_token    TEXT    NOT NULL,           -- idempotency token of its dispatch
    launches_children INTEGER NOT NULL CHECK (launches_children IN (0, 1)),
    stop              INTEGER NOT NULL CHECK (stop IN (0, 1)),
    has_scaling       INTEGER NOT NULL CHECK (has_scaling IN (0, 1)),
                                                  -- any group has a scaling policy
    status            TEXT    NOT NULL CHECK (status IN ('pending', 'running', 'dead')),
    listing           TEXT    NOT NULL,           -- the fixed part of its entry in lists
    queued            TEXT    NOT NULL,           -- group -> number of unplaced allocations
    children_pending  INTEGER NOT NULL CHECK (children_pending >= 0),
    children_running  INTEGER NOT NULL CHECK (children_running >= 0),
    children_dead     INTEGER NOT NULL CHECK (children_dead >= 0),
    summary           TEXT    NOT NULL,
    summary_index     INTEGER NOT NULL,
    create_index      INTEGER NOT NULL,
    modify_index      INTEGER NOT NULL,           -- last change of any attribute
    job_modify_index  INTEGER NOT NULL,           -- last change of its definition
    held              INTEGER NOT NULL DEFAULT 0 CHECK (held IN (0, 1)),
                                                  -- waits for a slot among its parent's children
    forgotten         INTEGER NOT NULL DEFAULT 0 CHECK (forgotten IN (0, 1)),
                                                  -- is being deleted: some rows are already deleted
    notify            TEXT    NOT NULL DEFAULT '',  -- its notification settings, or ''
    outcome           TEXT    NOT NULL DEFAULT '' CHECK (outcome IN ('', 'good', 'failed')),
                                                  -- the result of its last run or child
    versions_bytes    INTEGER NOT NULL DEFAULT 0 CHECK (versions_bytes >= 0),
                                                  -- total size of the documents of its versions
    failures          INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
                                                  -- consecutive failures, if `outcome` is failed
    failing_since     INTEGER NOT NULL DEFAULT 0, -- time of the first of these failures
    has_failed_run    INTEGER NOT NULL DEFAULT 0 CHECK (has_failed_run IN (0, 1)),
                                                  -- a run failed, or an allocation exceeded its
                                                  -- time limit: set by triggers on both tables
    has_failed_allocation INTEGER NOT NULL DEFAULT 0 CHECK (has_failed_allocation IN (0, 1)),
                                                  -- `summary` counts a failed or lost allocation
    PRIMARY KEY (namespace, id)
) STRICT;

CREATE INDEX jobs_by_parent ON jobs (namespace, parent_id, dispatch_token)
                        WHERE parent_id <> '';
CREATE INDEX jobs_by_creation ON jobs (namespace, parent_id, create_index, id)
                        WHERE parent_id <> '';
CREATE INDEX jobs_at_work ON jobs (namespace, parent_id, create_index)
                    WHERE parent_id <> '' AND held = 0 AND status <> 'dead';
CREATE INDEX jobs_held ON jobs (namespace, parent_id, create_index) WHERE held = 1;
CREATE INDEX jobs_ended_children ON jobs (namespace, parent_id, modify_index)
                           WHERE parent_id <> '' AND status = 'dead';
CREATE INDEX jobs_parents ON jobs (namespace, id) WHERE launches_children = 1;
-- A condition with `=` would make SQLite prepare each statement again for each parent.
CREATE INDEX jobs_by_change ON jobs (modify_index, namespace, id) WHERE parent_id IS '';
CREATE INDEX jobs_by_name ON jobs (namespace, id, modify_index) WHERE parent_id IS '';
CREATE INDEX jobs_changed ON jobs (modify_index, namespace, id);
CREATE INDEX jobs_alive ON jobs (status) WHERE status <> 'dead';
-- storage/queries/job_listings.py has the same condition. A page reads either all jobs, or the jobs
-- without a parent, which are few among failed children.
CREATE INDEX jobs_failed ON jobs (type, modify_index, namespace, id)
                   WHERE stop = 0 AND (type NOT IN ('batch', 'sysbatch') OR has_failed_run = 1
                                       OR has_failed_allocation = 1);
CREATE INDEX jobs_failed_by_name ON jobs (namespace, id, modify_index, type)
                   WHERE stop = 0 AND (type NOT IN ('batch', 'sysbatch') OR has_failed_run = 1
                                       OR has_failed_allocation = 1);
CREATE INDEX jobs_failed_top_level ON jobs (type, modify_index, namespace, id)
                   WHERE parent_id IS ''
                     AND stop = 0 AND (type NOT IN ('batch', 'sysbatch') OR has_failed_run = 1
                                       OR has_failed_allocation = 1);
CREATE INDEX jobs_failed_top_level_by_name ON jobs (namespace, id, modify_index, type)
                   WHERE parent_id IS ''
                     AND stop = 0 AND (type NOT IN ('batch', 'sysbatch') OR has_failed_run = 1
                                       OR has_failed_allocation = 1);
CREATE INDEX jobs_dead ON jobs (modify_index) WHERE status = 'dead';
CREATE INDEX jobs_everywhere ON jobs (namespace, id)
                       WHERE type IN ('system', 'sysbatch') AND stop = 0 AND launches_children = 0;
CREATE INDEX jobs_scaled ON jobs (namespace, id) WHERE has_scaling = 1;

-- Job versions are append-only: registering, reverting, scaling and stopping each add a row. A
-- trigger rejects updates. Rows are deleted only with the whole job. The next table has the
-- attributes of a version that can change.
CREATE TABLE job_versions (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    version       INTEGER NOT NULL CHECK (version >= 0),
    submit_time   INTEGER NOT NULL,
    create_index  INTEGER NOT NULL,               -- index of the write that appended this version
    document      TEXT    NOT NULL,               -- the definition, without the fields of JobHead
    PRIMARY KEY (namespace, job_id, version),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT;

CREATE TRIGGER job_versions_are_append_only BEFORE UPDATE ON job_versions
BEGIN
    SELECT RAISE(ABORT, 'job versions are append-only');
END;

CREATE TRIGGER job_versions_go_with_their_job BEFORE DELETE ON job_versions
WHEN EXISTS (SELECT 1 FROM jobs WHERE namespace = OLD.namespace AND id = OLD.job_id)
BEGIN
    SELECT RAISE(ABORT, 'job versions are only removed with their job');
END;

-- The attributes of a version that can change: stable, the tag, and the status at the time when
-- the version was replaced. Written by daemon/jobs and daemon/evals/deployment_watcher.py.
CREATE TABLE job_version_states (
    namespace       TEXT    NOT NULL,
    job_id          TEXT    NOT NULL,
    version         INTEGER NOT NULL,
    stable          INTEGER NOT NULL CHECK (stable IN (0, 1)),
    status          TEXT    NOT NULL,
    tag_name        TEXT,
    tag_description TEXT,
    tagged_time     INTEGER,
    modify_index    INTEGER NOT NULL,
    person          TEXT    NOT NULL DEFAULT '',  -- user of the request that created the version
    PRIMARY KEY (namespace, job_id, version),
    FOREIGN KEY (namespace, job_id, version)
        REFERENCES job_versions (namespace, job_id, version) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX job_version_states_tagged ON job_version_states (namespace, job_id, tag_name)
                                              WHERE tag_name IS NOT NULL;

-- The source texts of the six newest versions. Written and trimmed by daemon/jobs/register.py,
-- in the write that appends the version.
CREATE TABLE job_submissions (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    document      TEXT    NOT NULL,
    PRIMARY KEY (namespace, job_id, version),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT;

-- Scaling requests of a group, and notes about requests that changed nothing: the newest twenty
-- per group. Written and trimmed by daemon/jobs/scale.py.
CREATE TABLE scaling_events (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    task_group    TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    document      TEXT    NOT NULL,
    PRIMARY KEY (namespace, job_id, task_group, create_index),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT;

-- Enabled periodic jobs that are not stopped: the time up to which slots are decided, and the
-- next slot. A new version of the job adds, deletes or resets the row (storage/queries/jobs.py
-- append_version). daemon/jobs/periodic.py decides slots.
CREATE TABLE periodic_jobs (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    followed_to   INTEGER NOT NULL,               -- every slot up to this time has been decided
    next_slot     INTEGER,                        -- NULL: not computed yet
    paused        INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),  -- slots are skipped
    next_launch   INTEGER,                        -- with a calendar: the next slot that is open
    PRIMARY KEY (namespace, job_id),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT;

CREATE INDEX periodic_jobs_due ON periodic_jobs (next_slot);

-- The outcome of each slot of a periodic job: launched, or the reason why not. Only the newest
-- thousand rows of a job are retained. Written and trimmed by daemon/jobs/periodic.py, in the write
-- that decides.
CREATE TABLE periodic_slots (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    slot          INTEGER NOT NULL,               -- the first, if the row covers several
    slots         INTEGER NOT NULL CHECK (slots >= 1),
    decided_at    INTEGER NOT NULL,
    outcome       TEXT    NOT NULL CHECK (outcome IN ('launched', 'caught-up', 'skipped')),
    reason        TEXT    NOT NULL,
    child_id      TEXT    NOT NULL,
    write_index   INTEGER NOT NULL,
    PRIMARY KEY (namespace, job_id, slot),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- Calendars: days and hours in which jobs may begin. The row has the latest version. A deletion
-- removes all versions. Written by daemon/jobs/calendars.py.
CREATE TABLE calendars (
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    version       INTEGER NOT NULL CHECK (version >= 1),
    document      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;

-- The newest versions of each calendar, the latest included, with author and time. Written and
-- trimmed with the calendar.
CREATE TABLE calendar_versions (
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    version       INTEGER NOT NULL CHECK (version >= 1),
    document      TEXT    NOT NULL,
    person        TEXT    NOT NULL,
    time          INTEGER NOT NULL,
    PRIMARY KEY (namespace, name, version),
    FOREIGN KEY (namespace, name) REFERENCES calendars (namespace, name) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- The calendars that the latest version of another calendar uses. Written with the calendar.
CREATE TABLE calendar_parts (
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    part          TEXT    NOT NULL,
    PRIMARY KEY (namespace, name, part),
    FOREIGN KEY (namespace, name) REFERENCES calendars (namespace, name) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE INDEX calendar_parts_by_part ON calendar_parts (namespace, part, name);

-- The calendars that the current version of a job uses, unless the job is stopped. Child jobs have
-- no rows, only their parent has rows. Written with the version (storage/queries/jobs.py
-- append_version).
CREATE TABLE calendar_jobs (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    calendar      TEXT    NOT NULL,
    PRIMARY KEY (namespace, job_id, calendar),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE INDEX calendar_jobs_by_calendar ON calendar_jobs (namespace, calendar, job_id);

-- Notifications about a job, and the state of their delivery. Written with the reported event
-- (storage/queries/job_status.py refresh_summary, daemon/jobs/periodic.py), then by daemon/notify.
-- Rows remain after a purge of their job.
CREATE TABLE notifications (
    number        INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,               -- job with the setting: of a child, the parent
    run_id        TEXT    NOT NULL,               -- the reported job
    event         TEXT    NOT NULL
                  CHECK (event IN ('failure', 'recovery', 'missed', 'late', 'approval')),
    reason        TEXT    NOT NULL,
    webhook       TEXT    NOT NULL,               -- URL; two of webhook, command, receiver are ''
    command       TEXT    NOT NULL,               -- name of a command
    status        TEXT    NOT NULL CHECK (status IN ('pending', 'sent', 'failed')),
    attempts      INTEGER NOT NULL CHECK (attempts >= 0),
    next_attempt  INTEGER NOT NULL,
    error         TEXT    NOT NULL,               -- of the last attempt
    create_time   INTEGER NOT NULL,
    modify_time   INTEGER NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL,
    receiver      TEXT    NOT NULL DEFAULT '',    -- name of a receiver in the configuration
    failures      INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
                                                  -- consecutive failures, including this one
    failing_since INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX notifications_by_job  ON notifications (namespace, job_id, number);
CREATE INDEX notifications_pending ON notifications (namespace, job_id, next_attempt)
                                   WHERE status = 'pending' AND receiver = '';
CREATE INDEX notifications_by_receiver ON notifications (receiver, next_attempt)
                                       WHERE status = 'pending' AND receiver > '';
CREATE INDEX notifications_by_time ON notifications (next_attempt) WHERE status = 'pending';

-- The number of notifications that were sent, given up, or dropped because too many were queued,
-- by receiver or channel (`webhook`, `command`). Written with each such notification.
CREATE TABLE notification_totals (
    receiver      TEXT    NOT NULL,
    outcome       TEXT    NOT NULL CHECK (outcome IN ('sent', 'failed', 'dropped')),
    number        INTEGER NOT NULL CHECK (number >= 0),
    PRIMARY KEY (receiver, outcome)
) STRICT, WITHOUT ROWID;

-- Evaluations: requests to schedule a job. Created in the same write as their cause, and
-- finished by daemon/evals/applier.py in the write that stores the plan. Rows remain after a
-- purge of their job.
CREATE TABLE evaluations (
    id            TEXT    NOT NULL UNIQUE,
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    priority      INTEGER NOT NULL,
    status        TEXT    NOT NULL
                  CHECK (status IN ('pending', 'blocked', 'complete', 'failed', 'canceled')),
    wait_until    INTEGER NOT NULL,               -- 0: immediately
    tried_index   INTEGER NOT NULL,               -- blocked: index of its last failed placement
    needs_cpu     INTEGER NOT NULL,               -- blocked: the minimum of the needed resources,
    needs_memory  INTEGER NOT NULL,               --          MHz, MB, MB; all 0 if it waits for
    needs_disk    INTEGER NOT NULL,               --          a node of another kind
    deployment_id TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL,
    modify_time   INTEGER NOT NULL,
    document      TEXT    NOT NULL,
    request_id    TEXT    NOT NULL DEFAULT '',    -- the request that caused it, and its trace
    needs_besides TEXT    NOT NULL DEFAULT ''     -- blocked: other needed resources, as JSON
) STRICT;

CREATE INDEX evaluations_by_job     ON evaluations (namespace, job_id, modify_index);
CREATE INDEX evaluations_in_order   ON evaluations (create_index, id);
CREATE INDEX evaluations_of_job_in_order ON evaluations (namespace, job_id, create_index, id);
CREATE INDEX evaluations_ready      ON evaluations (priority DESC, create_index)
                                    WHERE status = 'pending' AND wait_until = 0;
CREATE INDEX evaluations_delayed    ON evaluations (wait_until)
                                    WHERE status = 'pending' AND wait_until > 0;
CREATE INDEX evaluations_unfinished ON evaluations (namespace, job_id)
                                    WHERE status IN ('pending', 'blocked');
CREATE INDEX evaluations_unplaced   ON evaluations (namespace, job_id)
                                    WHERE status = 'failed'
                                       OR CASE WHEN json_valid(document)
                                               THEN coalesce(document ->> '$.FailedTGAllocs', '{}') <> '{}'
                                               ELSE 1 END;
CREATE INDEX evaluations_ended      ON evaluations (modify_time)
                                    WHERE status NOT IN ('pending', 'blocked');
CREATE INDEX evaluations_blocked    ON evaluations (needs_memory, needs_cpu, needs_disk, needs_besides,
                                                    priority DESC, create_index, tried_index)
                                    WHERE status = 'blocked';

-- Allocations: instances of task groups on a node. daemon/evals/applier.py writes the placement
-- once, and the desired state. daemon/runner writes the client state and the health.
CREATE TABLE allocations (
    id                 TEXT    NOT NULL UNIQUE,
    namespace          TEXT    NOT NULL,
    job_id             TEXT    NOT NULL,
    job_version        INTEGER NOT NULL,
    job_type           TEXT    NOT NULL,
    task_group         TEXT    NOT NULL,
    name               TEXT    NOT NULL,
    node_id            TEXT    NOT NULL,
    eval_id            TEXT    NOT NULL,
    deployment_id      TEXT    NOT NULL,
    desired_status     TEXT    NOT NULL CHECK (desired_status IN ('run', 'stop', 'evict')),
    client_status      TEXT    NOT NULL
                       CHECK (client_status IN
                              ('pending', 'running', 'complete', 'failed', 'lost', 'unknown')),
    cpu                INTEGER NOT NULL,          -- its resources: MHz, MB, MB
    memory             INTEGER NOT NULL,
    disk               INTEGER NOT NULL,
    exclusive          TEXT,                      -- its reserved cores and devices
    placement          TEXT    NOT NULL,
    desired            TEXT    NOT NULL,
    client             TEXT    NOT NULL,
    health             TEXT,
    create_index       INTEGER NOT NULL,
    modify_index       INTEGER NOT NULL,
    alloc_modify_index INTEGER NOT NULL,          -- last change of the desired state
    create_time        INTEGER NOT NULL,
    modify_time        INTEGER NOT NULL,
    request_id         TEXT    NOT NULL DEFAULT '',  -- request that last changed the desired state
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT;

-- In alphabetical order, the client statuses of unfinished allocations are the last ones, from
-- 'pending' on. Therefore each condition below needs only one comparison. For a list of three or
-- more values, SQLite builds a table in memory in each write, for each condition. This took half of
-- the time of an update.
CREATE INDEX allocations_by_job        ON allocations (namespace, job_id, task_group, client_status);
CREATE INDEX allocations_by_evaluation ON allocations (eval_id);
CREATE INDEX allocations_by_deployment ON allocations (deployment_id) WHERE deployment_id <> '';
CREATE INDEX allocations_in_order      ON allocations (create_index, id);
CREATE INDEX allocations_of_job_in_order ON allocations (namespace, job_id, create_index, id, name);
CREATE INDEX allocations_of_job_changed ON allocations (namespace, job_id, modify_index);
CREATE INDEX allocations_of_node_changed ON allocations (node_id, modify_index);
CREATE INDEX allocations_changed       ON allocations (node_id, alloc_modify_index);
CREATE INDEX allocations_holding       ON allocations (node_id, create_index, id)
                                       WHERE client_status >= 'pending';
CREATE INDEX allocations_exclusive     ON allocations (node_id, exclusive)
                                       WHERE client_status >= 'pending'
                                         AND exclusive IS NOT NULL;
CREATE INDEX allocations_unfinished    ON allocations (namespace, job_id)
                                       WHERE desired_status = 'run'
                                         AND client_status >= 'pending';
CREATE INDEX allocations_ending        ON allocations (namespace, job_id)
                                       WHERE desired_status <> 'run'
                                         AND client_status >= 'pending';

-- Replaced allocations, and ended allocations that are not desired. Garbage collection deletes them
-- by age and number.
CREATE INDEX allocations_replaced      ON allocations (namespace, job_id, modify_time)
                                       WHERE client_status < 'pending'
                                         AND (desired ->> '$.NextAllocation' IS NOT NULL
                                              OR desired_status <> 'run' AND job_type <> 'sysbatch'
                                                 AND desired ->> '$.Transition.MigrateDisablePlacement' IS NOT 1);

-- Allocations that the scheduler reads: all except stopped allocations that have ended and whose
-- names are free.
CREATE INDEX allocations_considered    ON allocations (namespace, job_id, create_index, id)
                                       WHERE desired_status = 'run'
                                          OR client_status >= 'pending'
                                          OR desired ->> '$.Transition.MigrateDisablePlacement';

-- Retained completed allocations of a batch job. The scheduler needs only their numbers, from the
-- end of their names: `job.group[NUMBER]`. Allocations that exceeded their time limit are failures
-- of their step.
CREATE INDEX allocations_settled ON allocations
    (namespace, job_id, task_group, job_version,
     CAST(substr(name, length(job_id) + length(task_group) + 3) AS INTEGER))
 WHERE job_type = 'batch' AND desired_status = 'run' AND client_status = 'complete'
   AND CASE WHEN json_valid(desired) THEN desired ->> '$.NextAllocation' END IS NULL
   AND CASE WHEN json_valid(client) THEN client ->> '$.Description' END
           IS NOT 'allocation exceeded max_run_duration';

-- The other allocations that the scheduler reads for a batch job.
CREATE INDEX allocations_unsettled ON allocations (namespace, job_id, create_index, id)
 WHERE (desired_status = 'run'
        OR client_status >= 'pending'
        OR CASE WHEN json_valid(desired)
                THEN desired ->> '$.Transition.MigrateDisablePlacement' END)
   AND NOT (job_type = 'batch' AND desired_status = 'run' AND client_status = 'complete'
            AND CASE WHEN json_valid(desired) THEN desired ->> '$.NextAllocation' END IS NULL
            AND CASE WHEN json_valid(client) THEN client ->> '$.Description' END
           IS NOT 'allocation exceeded max_run_duration');

-- Allocations that their `max_run_duration` ended. Their job has failed, although Nomad calls them
-- complete.
CREATE INDEX allocations_overtime ON allocations (namespace, job_id, modify_index)
 WHERE client_status = 'complete'
   AND CASE WHEN json_valid(client) THEN client ->> '$.Description' END
           IS 'allocation exceeded max_run_duration';

-- Failed allocations that were not replaced: notifications name the newest one.
CREATE INDEX allocations_failed ON allocations (namespace, job_id, job_version, modify_index)
 WHERE desired_status = 'run'
   AND CASE WHEN json_valid(desired) THEN desired ->> '$.NextAllocation' END IS NULL
   AND (client_status IN ('failed', 'lost')
        OR client_status = 'complete'
           AND CASE WHEN json_valid(client) THEN client ->> '$.Description' END
               IS 'allocation exceeded max_run_duration');

CREATE TRIGGER allocations_begin_overtime AFTER INSERT ON allocations
WHEN NEW.client_status = 'complete'
     AND CASE WHEN json_valid(NEW.client) THEN NEW.client ->> '$.Description' END
         IS 'allocation exceeded max_run_duration'
BEGIN
    UPDATE jobs SET has_failed_run = 1 WHERE namespace = NEW.namespace AND id = NEW.job_id;
END;
CREATE TRIGGER allocations_become_overtime AFTER UPDATE OF client_status, client ON allocations
WHEN NEW.client_status = 'complete'
     AND CASE WHEN json_valid(NEW.client) THEN NEW.client ->> '$.Description' END
         IS 'allocation exceeded max_run_duration'
BEGIN
    UPDATE jobs SET has_failed_run = 1 WHERE namespace = NEW.namespace AND id = NEW.job_id;
END;

-- The sum of the resources of a node's allocations whose tasks have not ended. So the scheduler
-- reads one row per node. Maintained by triggers on allocations.
CREATE TABLE holdings (
    node_id TEXT    PRIMARY KEY,
    number  INTEGER NOT NULL CHECK (number >= 0),
    cpu     INTEGER NOT NULL,
    memory  INTEGER NOT NULL,
    disk    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER allocations_begin_to_hold AFTER INSERT ON allocations
WHEN NEW.client_status >= 'pending'
BEGIN
    INSERT INTO holdings VALUES (NEW.node_id, 1, NEW.cpu, NEW.memory, NEW.disk)
        ON CONFLICT (node_id) DO UPDATE
       SET number = number + 1, cpu = cpu + excluded.cpu, memory = memory + excluded.memory,
           disk = disk + excluded.disk;
END;
CREATE TRIGGER allocations_end AFTER UPDATE OF client_status ON allocations
WHEN OLD.client_status >= 'pending'
     AND NEW.client_status < 'pending'
BEGIN
    UPDATE holdings
       SET number = number - 1, cpu = cpu - OLD.cpu, memory = memory - OLD.memory,
           disk = disk - OLD.disk
     WHERE node_id = OLD.node_id;
END;
CREATE TRIGGER allocations_come_back AFTER UPDATE OF client_status ON allocations
WHEN OLD.client_status < 'pending'
     AND NEW.client_status >= 'pending'
BEGIN
    UPDATE holdings
       SET number = number + 1, cpu = cpu + NEW.cpu, memory = memory + NEW.memory,
           disk = disk + NEW.disk
     WHERE node_id = NEW.node_id;
END;
CREATE TRIGGER allocations_go AFTER DELETE ON allocations
WHEN OLD.client_status >= 'pending'
BEGIN
    UPDATE holdings
       SET number = number - 1, cpu = cpu - OLD.cpu, memory = memory - OLD.memory,
           disk = disk - OLD.disk
     WHERE node_id = OLD.node_id;
END;

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

-- Ports of an allocation until its tasks end. Written by daemon/evals/applier.py with the
-- placement, deleted by daemon/runner with the end.
CREATE TABLE allocation_ports (
    node_id       TEXT    NOT NULL,
    port          INTEGER NOT NULL CHECK (port BETWEEN 1 AND 65535),
    allocation_id TEXT    NOT NULL REFERENCES allocations (id) ON DELETE CASCADE,
    PRIMARY KEY (node_id, port, allocation_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX allocation_ports_by_allocation ON allocation_ports (allocation_id);

-- Task events in order: the newest 10,000 per task. Written and trimmed by daemon/runner.
CREATE TABLE task_events (
    allocation_id TEXT    NOT NULL REFERENCES allocations (id) ON DELETE CASCADE,
    task          TEXT    NOT NULL,
    number        INTEGER NOT NULL CHECK (number >= 0),
    document      TEXT    NOT NULL,
    PRIMARY KEY (allocation_id, task, number)
) STRICT, WITHOUT ROWID;

-- Handles for the recovery of started tasks: opaque data of the driver. Written by daemon/runner.
CREATE TABLE task_handles (
    allocation_id TEXT    NOT NULL REFERENCES allocations (id) ON DELETE CASCADE,
    task          TEXT    NOT NULL,
    handle        BLOB    NOT NULL,
    PRIMARY KEY (allocation_id, task)
) STRICT, WITHOUT ROWID;

-- Attempts of tasks that run as jobs of a cluster: the claim of a wrapper, and the result.
-- Written by daemon/runner/drivers/slurm. Secrets are stored only as hashes. A void attempt
-- cannot be claimed, and Steward cancels it as soon as its cluster answers.
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
    array         TEXT    NOT NULL DEFAULT '',    -- name of its Slurm array; empty: a single job
    element       INTEGER NOT NULL DEFAULT -1,    -- number in the array; -1: none
    PRIMARY KEY (allocation_id, task, number)
) STRICT, WITHOUT ROWID;

CREATE INDEX cluster_runs_void ON cluster_runs (pool) WHERE status = 'void';

-- Registered services with the addresses of their instances. A row appears when its allocation
-- starts. It is deleted when the allocation stops or ends, or when a user deletes it. Written by
-- daemon/runner with the report of the allocation.
CREATE TABLE services (
    id            TEXT    NOT NULL PRIMARY KEY,
    name          TEXT    NOT NULL,
    namespace     TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    datacenter    TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    allocation_id TEXT    NOT NULL REFERENCES allocations (id) ON DELETE CASCADE,
    tags          TEXT    NOT NULL,
    address       TEXT    NOT NULL,
    port          INTEGER NOT NULL CHECK (port BETWEEN 0 AND 65535),
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL,
    ready         INTEGER NOT NULL DEFAULT 1 CHECK (ready IN (0, 1))  -- its checks pass
) STRICT, WITHOUT ROWID;

CREATE INDEX services_by_name       ON services (namespace, name);
CREATE INDEX services_by_job        ON services (namespace, job_id);
CREATE INDEX services_by_allocation ON services (allocation_id);

-- Deployments: the replacement of a job version by another. Created by daemon/evals/applier.py;
-- daemon/evals/deployment_watcher.py writes status, counts and promotion.
CREATE TABLE deployments (
    id            TEXT    NOT NULL UNIQUE,
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    job_version   INTEGER NOT NULL,
    status        TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL,
    document      TEXT    NOT NULL,
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT;

CREATE INDEX deployments_in_order ON deployments (create_index, id);
CREATE INDEX deployments_by_job ON deployments (namespace, job_id, create_index, id);
CREATE INDEX deployments_of_job_changed ON deployments (namespace, job_id, modify_index);
CREATE INDEX deployments_active ON deployments (namespace, job_id)
                                WHERE status IN ('running', 'paused');

-- Freezes: in their scope, no runs or steps begin, or jobs cannot be changed. `ended` is 0 until
-- the end. Written by daemon/jobs/freezes.py, which retains the newest ended freezes per namespace.
CREATE TABLE freezes (
    id            TEXT    NOT NULL PRIMARY KEY,
    namespace     TEXT    NOT NULL,
    jobs          TEXT    NOT NULL,
    queue         TEXT    NOT NULL,
    strength      TEXT    NOT NULL CHECK (strength IN ('begin', 'steps', 'changes')),
    reason        TEXT    NOT NULL,
    person        TEXT    NOT NULL,
    begin         INTEGER NOT NULL,
    until         INTEGER NOT NULL,
    ended         INTEGER NOT NULL,
    ended_by      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX freezes_in_order ON freezes (create_index, id);
CREATE INDEX freezes_open ON freezes (namespace) WHERE ended = 0;
CREATE INDEX freezes_ended ON freezes (namespace, ended) WHERE ended > 0;

-- Jobs with runs or steps that a freeze delays. After the end of the freeze, daemon/jobs/freezes.py
-- evaluates the jobs in the order of their arrival. Written by daemon/evals/applier.py with the
-- plan.
CREATE TABLE frozen_jobs (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    freeze_id     TEXT    NOT NULL,
    since         INTEGER NOT NULL,
    arrived       INTEGER NOT NULL,
    PRIMARY KEY (namespace, job_id),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX frozen_jobs_in_order ON frozen_jobs (freeze_id, arrived, namespace, job_id);

-- Runs of workflows: each version of a batch job with dependent groups runs once. A
-- row appears with the first decision about the run. It is deleted with its job, or when newer
-- runs exceed the limit. Written by daemon/evals/applier.py with the plan.
CREATE TABLE runs (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    number        INTEGER NOT NULL CHECK (number >= 1),  -- sequential number within the job
    version       INTEGER NOT NULL,               -- of the job
    status        TEXT    NOT NULL
                  CHECK (status IN ('running', 'stopping', 'succeeded', 'failed', 'canceled')),
    reason        TEXT    NOT NULL,
    triggered_by  TEXT    NOT NULL,               -- cause of the evaluation that started it
    attempt       INTEGER NOT NULL CHECK (attempt >= 1),
    began         INTEGER NOT NULL,
    ended         INTEGER NOT NULL,               -- 0: not yet
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL,
    cleans_up     INTEGER NOT NULL DEFAULT 0 CHECK (cleans_up IN (0, 1)),
                                                  -- canceled: clean-up steps still run
    deadline      INTEGER NOT NULL DEFAULT 0,     -- time limit of the run or its clean-up; 0: none
    only_step     TEXT    NOT NULL DEFAULT '',    -- the one step that runs; empty: all
    only_element  INTEGER CHECK (only_element >= 0),  -- the one element of it; null: all
    outputs_of    INTEGER NOT NULL DEFAULT 0 CHECK (outputs_of >= 0),
                                                  -- run with the outputs of other steps; 0: none
    PRIMARY KEY (namespace, job_id, number),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT;

CREATE INDEX runs_unfinished ON runs (namespace, job_id)
                             WHERE status IN ('running', 'stopping');
CREATE INDEX runs_in_order   ON runs (create_index, job_id);
CREATE INDEX runs_failed ON runs (namespace, job_id) WHERE status = 'failed';

CREATE TRIGGER runs_begin_failed AFTER INSERT ON runs
WHEN NEW.status = 'failed'
BEGIN
    UPDATE jobs SET has_failed_run = 1 WHERE namespace = NEW.namespace AND id = NEW.job_id;
END;
CREATE TRIGGER runs_fail AFTER UPDATE OF status ON runs
WHEN NEW.status = 'failed'
BEGIN
    UPDATE jobs SET has_failed_run = 1 WHERE namespace = NEW.namespace AND id = NEW.job_id;
END;

-- Steps of runs: one row for each group of the job's version. `outcome` is set when the step has
-- ended. Written by daemon/evals/applier.py with the plan;
-- `output_bytes` with the outputs.
CREATE TABLE run_steps (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    step          TEXT    NOT NULL,
    place         INTEGER NOT NULL,               -- in the job
    state         TEXT    NOT NULL
                  CHECK (state IN
                         ('waiting', 'held', 'open', 'succeeded', 'failed', 'skipped', 'canceled')),
    reason        TEXT    NOT NULL,
    outcome       TEXT    CHECK (outcome IN ('good', 'bad', 'neutral')),
    attempt       INTEGER NOT NULL CHECK (attempt >= 1),
    since         INTEGER NOT NULL,               -- in this state
    opened        INTEGER NOT NULL,               -- 0: not yet; below 0: in an earlier attempt
    total         INTEGER NOT NULL CHECK (total >= 0),   -- elements: all,
    good          INTEGER NOT NULL CHECK (good >= 0),    -- succeeded,
    failed        INTEGER NOT NULL CHECK (failed >= 0),  -- failed without a retry
    exit_code     INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL,
    output_bytes  INTEGER NOT NULL DEFAULT 0 CHECK (output_bytes >= 0),  -- sum of its outputs
    PRIMARY KEY (namespace, job_id, number, step),
    FOREIGN KEY (namespace, job_id, number)
        REFERENCES runs (namespace, job_id, number) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- Outputs of the elements of steps. A row has the outputs of the newest allocation: a JSON object
-- with one object of strings per task. Written by daemon/runner at the end of a task. Deleted by
-- daemon/runner at the end of a newer allocation, or by daemon/jobs/steer_run.py for a repeated
-- element.
CREATE TABLE run_outputs (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    step          TEXT    NOT NULL,
    element       INTEGER NOT NULL CHECK (element >= 0),
    alloc_id      TEXT    NOT NULL,
    outputs       TEXT    NOT NULL,
    size          INTEGER NOT NULL CHECK (size >= 0),    -- bytes of `outputs`
    PRIMARY KEY (namespace, job_id, number, step, element),
    FOREIGN KEY (namespace, job_id, number)
        REFERENCES runs (namespace, job_id, number) ON DELETE CASCADE
) STRICT;

-- Manual operations on a run, in order. `steps` is a JSON list. An approval counts for the
-- attempt of its step. Written by daemon/jobs/steer_run.py, and never changed.
CREATE TABLE run_acts (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    place         INTEGER NOT NULL,               -- number of the operation, from 1
    act           TEXT    NOT NULL
                  CHECK (act IN ('cancel', 'skip', 'accept', 'rerun', 'approve', 'reject',
                                 'step')),
    steps         TEXT    NOT NULL,
    attempt       INTEGER NOT NULL,               -- of the step; 0 for several
    who           TEXT    NOT NULL,               -- an entity, the subject of a login, or an accessor
    note          TEXT    NOT NULL,
    time          INTEGER NOT NULL,
    token         TEXT    NOT NULL DEFAULT '',    -- idempotency token of the request, and
    answer        TEXT    NOT NULL DEFAULT '',    -- its response
    PRIMARY KEY (namespace, job_id, number, place),
    FOREIGN KEY (namespace, job_id, number)
        REFERENCES runs (namespace, job_id, number) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX run_acts_by_token ON run_acts (namespace, job_id, token) WHERE token <> '';

-- Triggers: a parameterized job starts after other jobs. It has a row for each source in its meta
-- key `steward_after`. Written by storage/queries/jobs.py with each version.
CREATE TABLE job_sources (
    namespace        TEXT    NOT NULL,
    job_id           TEXT    NOT NULL,               -- the follower
    source_namespace TEXT    NOT NULL,
    source_id        TEXT    NOT NULL,               -- a job, or the parent of child jobs
    place            INTEGER NOT NULL,               -- position in the follower's list
    wanted           TEXT    NOT NULL CHECK (wanted IN ('success', 'failure', 'any')),
    since            INTEGER NOT NULL,               -- index of the write that named the source
    PRIMARY KEY (namespace, job_id, source_namespace, source_id),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE INDEX job_sources_by_source ON job_sources (source_namespace, source_id);

-- Ended runs and their effects on followers: one row for each end and follower. Added by the write
-- that ends the run. daemon/jobs/triggers.py changes the state in the write that dispatches the
-- child. The newest 1000 final rows of a follower are retained.
CREATE TABLE triggers (
    id               INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    namespace        TEXT    NOT NULL,
    job_id           TEXT    NOT NULL,               -- the follower
    source_namespace TEXT    NOT NULL,
    source_id        TEXT    NOT NULL,               -- the source in the follower's list
    run_job_id       TEXT    NOT NULL,               -- job of the run: the source, or its child
    number           INTEGER NOT NULL CHECK (number >= 0),  -- number of the run, or of the version
    version          INTEGER NOT NULL CHECK (version >= 0),
    attempt          INTEGER NOT NULL CHECK (attempt >= 1),
    status           TEXT    NOT NULL CHECK (status IN ('succeeded', 'failed', 'canceled')),
    state            TEXT    NOT NULL
                     CHECK (state IN ('arrived', 'waiting', 'fired', 'ignored', 'refused',
                                      'replaced', 'expired')),
    reason           TEXT    NOT NULL,
    value            TEXT    NOT NULL,               -- runs with different values do not join
    child_id         TEXT    NOT NULL,               -- the dispatched child job
    depth            INTEGER NOT NULL CHECK (depth >= 1),   -- length of the chain of jobs
    ended            INTEGER NOT NULL,               -- end of the run
    decided          INTEGER NOT NULL,               -- 0: not yet
    expires          INTEGER NOT NULL,               -- 0: it does not wait
    create_index     INTEGER NOT NULL,
    modify_index     INTEGER NOT NULL,
    meta             TEXT    NOT NULL DEFAULT '{}',  -- meta for the child, while it waits
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT;

CREATE UNIQUE INDEX triggers_once ON triggers
    (namespace, job_id, source_namespace, run_job_id, number, attempt);
CREATE INDEX triggers_by_job ON triggers (namespace, job_id, id);
CREATE INDEX triggers_by_child ON triggers (namespace, child_id) WHERE child_id <> '';
CREATE INDEX triggers_arrived ON triggers (id) WHERE state = 'arrived';
CREATE INDEX triggers_expiring ON triggers (expires) WHERE state = 'waiting';
CREATE INDEX triggers_waiting ON triggers (namespace, job_id, value) WHERE state = 'waiting';
CREATE INDEX triggers_unfinished ON triggers (namespace, job_id)
    WHERE state IN ('arrived', 'waiting');

-- The last end of each batch job that other jobs follow and that is not a workflow. It keeps an end
-- from being recorded twice after the ledger was trimmed. Written by storage/queries/triggers.py
-- with the rows of an end.
CREATE TABLE job_ends (
    namespace        TEXT    NOT NULL,
    job_id           TEXT    NOT NULL,
    version          INTEGER NOT NULL CHECK (version >= 0),
    attempt          INTEGER NOT NULL CHECK (attempt >= 1),
    status           TEXT    NOT NULL CHECK (status IN ('succeeded', 'failed', 'canceled')),
    newest           INTEGER NOT NULL,               -- create index of its newest allocation
    PRIMARY KEY (namespace, job_id),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- The number of ended runs by final effect, since the creation of the store.
CREATE TABLE trigger_totals (
    state  TEXT    NOT NULL PRIMARY KEY,
    number INTEGER NOT NULL CHECK (number >= 0)
) STRICT, WITHOUT ROWID;

-- Queues with a configured number of slots. All other queues have one slot. Written by
-- daemon/api/concurrency.py.
CREATE TABLE queues (
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    slots         INTEGER NOT NULL CHECK (slots >= 1),
    note          TEXT    NOT NULL,
    modify_index  INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;

-- Runs that hold slots of a queue, or wait for them. Added by the write that stores the run, and
-- deleted by the write that ends the run (storage/queries/runs.py). daemon/jobs/queues.py grants
-- slots.
CREATE TABLE queue_entries (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    name          TEXT    NOT NULL,
    parent_id     TEXT    NOT NULL,
    slots         INTEGER NOT NULL CHECK (slots >= 1),
    state         TEXT    NOT NULL CHECK (state IN ('waiting', 'holding')),
    priority      INTEGER NOT NULL,
    beyond        TEXT    NOT NULL
                  CHECK (beyond IN ('queue', 'skip', 'newest', 'cancel-oldest')),
    arrived       INTEGER NOT NULL,               -- index of the write with the run's request
    since         INTEGER NOT NULL,
    PRIMARY KEY (namespace, job_id, number),
    FOREIGN KEY (namespace, job_id, number)
        REFERENCES runs (namespace, job_id, number) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE INDEX queue_entries_waiting ON queue_entries
    (namespace, name, priority DESC, arrived, job_id) WHERE state = 'waiting';
CREATE INDEX queue_entries_holding ON queue_entries (namespace, name, arrived, job_id, slots)
    WHERE state = 'holding';
CREATE INDEX queue_entries_eager ON queue_entries (namespace, name, arrived)
    WHERE state = 'waiting' AND beyond <> 'queue';
CREATE INDEX queue_entries_by_owner ON queue_entries
    (namespace, name, state, coalesce(nullif(parent_id, ''), job_id), arrived);

-- Steps that hold slots of a queue, or wait for them: a row for each queue of a step. Written with
-- the plan by daemon/evals/applier.py, and deleted by the write that ends the step
-- (storage/queries/runs.py). daemon/jobs/queues.py grants the slots.
CREATE TABLE step_slots (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    step          TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    place         INTEGER NOT NULL,               -- position of the step in the job
    slots         INTEGER NOT NULL CHECK (slots >= 1),       -- slots of each element
    wanted        INTEGER NOT NULL CHECK (wanted >= held),  -- elements that hold slots or wait
    held          INTEGER NOT NULL CHECK (held >= 0),       -- elements that hold slots
    busy          INTEGER NOT NULL CHECK (busy BETWEEN 0 AND held),
                                                  -- elements that the last plan left running
    priority      INTEGER NOT NULL,
    arrived       INTEGER NOT NULL,               -- index of the write with the step's request
    since         INTEGER NOT NULL,
    PRIMARY KEY (namespace, job_id, number, step, name),
    FOREIGN KEY (namespace, job_id, number, step)
        REFERENCES run_steps (namespace, job_id, number, step) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX step_slots_waiting ON step_slots
    (namespace, name, priority DESC, arrived, job_id, number, place) WHERE wanted > held;
CREATE INDEX step_slots_holding ON step_slots
    (namespace, name, arrived, job_id, number, place, slots, held) WHERE held > 0;

-- The queues in the definitions of jobs. A queue is for runs or for steps. Written with each
-- version.
CREATE TABLE queue_users (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    kind          TEXT    NOT NULL CHECK (kind IN ('runs', 'steps')),
    PRIMARY KEY (namespace, job_id, name),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX queue_users_by_name ON queue_users (namespace, name, kind, job_id);

-- Queues with a waiting run or step that changed after daemon/jobs/queues.py served them. Added by
-- each write that changes a queue (storage/queries/runs.py). Deleted when daemon/jobs/queues.py has
-- served the queue.
CREATE TABLE queues_changed (
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;

-- Nodes, on which tasks run. Written by daemon/runner/node.py.
CREATE TABLE nodes (
    id            TEXT    NOT NULL PRIMARY KEY,
    document      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Variables: named values at a path. If a variable is locked, only the holder of the lock can
-- change it. The values are secrets, at the place `variables/<namespace>/<path>`. Written by
-- daemon/variables.
CREATE TABLE variables (
    namespace     TEXT    NOT NULL,
    path          TEXT    NOT NULL,
    lock_id       TEXT    NOT NULL,               -- '': not locked
    lock_ttl      INTEGER NOT NULL,               -- time until an unrenewed lock is lost
    lock_delay    INTEGER NOT NULL,               -- time after a loss in which it cannot be acquired
    lock_ends     INTEGER NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL,
    create_time   INTEGER NOT NULL,
    modify_time   INTEGER NOT NULL,
    PRIMARY KEY (namespace, path)
) STRICT, WITHOUT ROWID;

CREATE INDEX variables_locked ON variables (lock_ends) WHERE lock_id <> '';

-- All secrets, encrypted: variables, signing keys, client secrets, and the secrets that tasks
-- received (at `output/<allocation>/<number>`), which are masked in their output. No other table
-- has a secret. The encryption is bound to the place, so a row cannot be exchanged for another.
-- Written by the owner of the secret, with daemon/acl/seal.py.
CREATE TABLE secrets (
    place         TEXT    NOT NULL PRIMARY KEY,
    sealed        BLOB    NOT NULL                -- begins with the version of its key
) STRICT, WITHOUT ROWID;

-- Keys that sign identity tokens. The private keys are secrets, at the place
-- `signing-keys/<id>`. Written by daemon/identity/issuer.py.
CREATE TABLE signing_keys (
    id            TEXT    NOT NULL PRIMARY KEY,
    public        TEXT    NOT NULL,               -- the public half as a JSON Web Key
    created_at    INTEGER NOT NULL,               -- publication
    signs_from    INTEGER NOT NULL                -- until the next key signs
) STRICT, WITHOUT ROWID;

-- The audit log: changes, and refused requests. Append-only: no row is changed, and only the
-- oldest row can be deleted. A change and its row are one write. Written and trimmed by
-- daemon/acl/audit.py.
CREATE TABLE audit (
    number        INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    time          INTEGER NOT NULL,
    accessor      TEXT    NOT NULL,               -- of the token; '' if unknown
    secret_hash   TEXT    NOT NULL,               -- keyed, of an unknown secret; or ''
    address       TEXT    NOT NULL,
    method        TEXT    NOT NULL,
    path          TEXT    NOT NULL,
    query         TEXT    NOT NULL,               -- secrets are hashed
    namespace     TEXT    NOT NULL,
    status        INTEGER NOT NULL,
    reason        TEXT    NOT NULL                -- of a refusal, or ''
) STRICT;

CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only');
END;

CREATE TRIGGER audit_goes_from_its_beginning BEFORE DELETE ON audit
WHEN OLD.number > (SELECT min(number) FROM audit)
BEGIN
    SELECT RAISE(ABORT, 'only the oldest entry of the audit can go');
END;

-- Keys that encrypt the secrets, each wrapped by the root key, which is not in this file.
-- Written by daemon/acl/seal.py at the first start, and by `steward operator rekey`.
CREATE TABLE seal_keys (
    version       INTEGER NOT NULL PRIMARY KEY CHECK (version >= 1),
    salt          BLOB    NOT NULL,               -- of a passphrase; empty if the root is a key
    wrapped       BLOB    NOT NULL,
    created_at    INTEGER NOT NULL
) STRICT;

-- Settings that the API can change while the daemon runs. Written by daemon/api.
CREATE TABLE settings (
    name          TEXT    NOT NULL PRIMARY KEY,
    value         TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- An index of the host volumes that the API created or registered. Their documents are settings
-- below host-volume/. The directory of a volume that is not ready is being created or deleted. The
-- next start of the daemon deletes this directory. Written by daemon/evals/host_volumes.py.
CREATE TABLE host_volumes (
    id               TEXT    NOT NULL PRIMARY KEY,
    namespace        TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    node_id          TEXT    NOT NULL,
    state            TEXT    NOT NULL,            -- pending, ready or deleting
    host_path        TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX host_volumes_by_name ON host_volumes (name);
CREATE INDEX host_volumes_by_namespace ON host_volumes (namespace, id);
CREATE INDEX host_volumes_unfinished ON host_volumes (id) WHERE state <> 'ready';

-- Units of the daemon's internal work whose last attempts failed: the number of consecutive
-- failures, and the reason. A row is deleted when its unit succeeds, changes, is given up or is
-- released. Written by daemon/fences.py.
CREATE TABLE faults (
    kind          TEXT    NOT NULL,               -- evaluation, periodic job, loop, …
    key           TEXT    NOT NULL,               -- identifies the unit within its kind
    failures      INTEGER NOT NULL CHECK (failures >= 1),
    reason        TEXT    NOT NULL,
    since         INTEGER NOT NULL,
    until         INTEGER NOT NULL,               -- the unit is not retried before this time
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;

-- Defaults of an older version that remain in force in this store until the configuration has
-- the setting. Written by the migrations that introduced the new defaults; empty in a new store.
CREATE TABLE kept_defaults (
    setting       TEXT    NOT NULL PRIMARY KEY,
    value         TEXT    NOT NULL                -- in JSON
) STRICT, WITHOUT ROWID;

-- Mounts: the login method at each path, which ends in a slash. Written by daemon/identity,
-- whose other tables follow. The configuration of a mount is deleted with it.
CREATE TABLE mounts (
    path          TEXT    NOT NULL PRIMARY KEY,
    accessor      TEXT    NOT NULL UNIQUE,        -- permanent name, never reused
    document      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Valid tokens. The secret of a token is not stored: a keyed hash of it finds the row. Both APIs
-- use the same rows. daemon/acl/tokens.py deletes expired tokens; daemon/acl writes all rows.
CREATE TABLE tokens (
    secret_hash   BLOB    NOT NULL PRIMARY KEY,
    accessor      TEXT    NOT NULL UNIQUE,        -- its public name
    parent        TEXT    NOT NULL,               -- accessor of the parent token, or ''
    mount         TEXT    NOT NULL,               -- accessor of the login method that issued it, or ''
    expires_at    INTEGER,                        -- NULL: never
    uses_left     INTEGER CHECK (uses_left > 0),  -- NULL: any number
    document      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX tokens_by_parent ON tokens (parent) WHERE parent <> '';
CREATE INDEX tokens_by_mount  ON tokens (mount, accessor) WHERE mount <> '';
CREATE INDEX tokens_in_order  ON tokens (create_index, accessor);
CREATE INDEX tokens_to_end    ON tokens (expires_at) WHERE expires_at IS NOT NULL;

-- Token roles of the Vault API. Written by daemon/acl.
CREATE TABLE token_roles (
    name          TEXT    NOT NULL PRIMARY KEY,
    document      TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- Wrapped responses, each encrypted with a key that is derived from the secret of its token. Each
-- can be read once, and is deleted with its token. Written by daemon/acl/response_wrapping.py.
CREATE TABLE wrapped_answers (
    accessor      TEXT    NOT NULL PRIMARY KEY REFERENCES tokens (accessor) ON DELETE CASCADE,
    path          TEXT    NOT NULL,               -- of the request
    sealed        BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

-- Policies: the permissions of tokens, as text. Written by daemon/acl.
CREATE TABLE policies (
    name          TEXT    NOT NULL PRIMARY KEY,
    document      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL,
    job_id        TEXT                            -- the policy is for tasks of this job, or NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX policies_of_jobs ON policies (job_id) WHERE job_id IS NOT NULL;

-- ACL roles: named sets of policies. Written by daemon/acl.
CREATE TABLE acl_roles (
    id            TEXT    NOT NULL PRIMARY KEY,
    name          TEXT    NOT NULL UNIQUE,
    document      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Auth methods of the jobs API. At most one is the default. Written by
-- daemon/identity/auth_methods.py.
CREATE TABLE auth_methods (
    name          TEXT    NOT NULL PRIMARY KEY,
    is_default    INTEGER NOT NULL CHECK (is_default IN (0, 1)),
    document      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX auth_methods_default ON auth_methods (is_default) WHERE is_default = 1;

-- Binding rules: they give logins of an auth method a role, a policy or all permissions. A
-- rule is deleted with its method. Written by daemon/identity/binding_rules.py.
CREATE TABLE binding_rules (
    id            TEXT    NOT NULL PRIMARY KEY,
    auth_method   TEXT    NOT NULL,
    document      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX binding_rules_by_method ON binding_rules (auth_method, id);

-- The configuration of a mount for its cloud. Its secret is in `secrets`, below
-- `identity/<mount>/`.
CREATE TABLE method_configs (
    mount         TEXT    NOT NULL PRIMARY KEY REFERENCES mounts (accessor) ON DELETE CASCADE,
    document      TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- Login roles: the conditions of a login by a mount, and the properties of the token.
CREATE TABLE login_roles (
    mount         TEXT    NOT NULL REFERENCES mounts (accessor) ON DELETE CASCADE,
    name          TEXT    NOT NULL,               -- in lower case
    document      TEXT    NOT NULL,
    PRIMARY KEY (mount, name)
) STRICT, WITHOUT ROWID;

-- The progress of the rotation of a mount's client secret, so that a restarted daemon can
-- continue it.
CREATE TABLE secret_rotations (
    mount         TEXT    NOT NULL PRIMARY KEY REFERENCES mounts (accessor) ON DELETE CASCADE,
    document      TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- Entities: users and programs that log in, independent of the names that mounts have for them.
-- Written by daemon/identity at the first login, and by users.
CREATE TABLE entities (
    id            TEXT    NOT NULL PRIMARY KEY,
    name          TEXT    NOT NULL UNIQUE,
    document      TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- Entity aliases: the name of an entity at a mount. Written with each login.
CREATE TABLE entity_aliases (
    mount         TEXT    NOT NULL REFERENCES mounts (accessor) ON DELETE CASCADE,
    name          TEXT    NOT NULL,
    id            TEXT    NOT NULL UNIQUE,
    entity_id     TEXT    NOT NULL REFERENCES entities (id) ON DELETE CASCADE,
    document      TEXT    NOT NULL,
    PRIMARY KEY (mount, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX entity_aliases_by_entity ON entity_aliases (entity_id);

-- Groups of entities. Their policies apply to every member, also through nested groups. Written
-- by daemon/identity.
CREATE TABLE identity_groups (
    id            TEXT    NOT NULL PRIMARY KEY,
    name          TEXT    NOT NULL UNIQUE,
    document      TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- Members of groups. Logins write the members of a group that has an alias.
CREATE TABLE identity_group_members (
    member        TEXT    NOT NULL,               -- id of an entity or of a group
    group_id      TEXT    NOT NULL REFERENCES identity_groups (id) ON DELETE CASCADE,
    is_group      INTEGER NOT NULL,
    PRIMARY KEY (member, group_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX identity_group_members_by_group ON identity_group_members (group_id);

-- Group aliases: the name of a group in the `groups` claim of a mount's tokens.
CREATE TABLE identity_group_aliases (
    mount         TEXT    NOT NULL REFERENCES mounts (accessor) ON DELETE CASCADE,
    name          TEXT    NOT NULL,
    id            TEXT    NOT NULL UNIQUE,
    group_id      TEXT    NOT NULL UNIQUE REFERENCES identity_groups (id) ON DELETE CASCADE,
    document      TEXT    NOT NULL,
    PRIMARY KEY (mount, name)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER identity_group_aliases_go AFTER DELETE ON identity_group_aliases
BEGIN
    DELETE FROM identity_group_members WHERE group_id = OLD.group_id;
END;

CREATE TRIGGER identity_groups_go AFTER DELETE ON identity_groups
BEGIN
    DELETE FROM identity_group_members WHERE member = OLD.id;
END;

CREATE TRIGGER entities_go AFTER DELETE ON entities
BEGIN
    DELETE FROM identity_group_members WHERE member = OLD.id;
END;

-- The last discovery document of a mount's directory: its issuer and its signing keys. Deleted
-- when the configuration is written.
CREATE TABLE directories (
    mount         TEXT    NOT NULL PRIMARY KEY REFERENCES mounts (accessor) ON DELETE CASCADE,
    document      TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- Events in order: every write adds a row for each changed object. Readers can start at any
-- stored index. Trimmed by daemon/evals/gc.py.
CREATE TABLE events (
    number        INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    write_index   INTEGER NOT NULL,
    topic         TEXT    NOT NULL,
    type          TEXT    NOT NULL,
    namespace     TEXT    NOT NULL,
    key           TEXT    NOT NULL,
    filter_keys   TEXT    NOT NULL,               -- JSON list: further names that filters match
    payload       TEXT    NOT NULL
) STRICT;

CREATE INDEX events_by_index ON events (write_index);

-- Usage over time: the measured objects. Written by daemon/runner/usage_history.py. A row is
-- deleted when its last block is too old, or when there are too many allocations.
CREATE TABLE usage_series (
    id            INTEGER NOT NULL PRIMARY KEY,
    kind          TEXT    NOT NULL CHECK (kind IN ('node', 'job', 'alloc')),
    namespace     TEXT    NOT NULL,               -- empty for a node
    owner         TEXT    NOT NULL,               -- the ID of the object
    task          TEXT    NOT NULL,               -- empty for the whole object
    last          INTEGER NOT NULL,               -- seconds since the epoch: its latest block
    UNIQUE (kind, namespace, owner, task)
) STRICT;

CREATE INDEX usage_series_by_age ON usage_series (kind, last);

-- Blocks of samples of one series: a sample every 10 s for some hours, and one every 300 s for 30
-- days. When the window of a block of 300 s is over, the block is computed from the blocks of 10 s.
CREATE TABLE usage_blocks (
    series        INTEGER NOT NULL REFERENCES usage_series (id) ON DELETE CASCADE,
    step          INTEGER NOT NULL CHECK (step IN (10, 300)),
    begin         INTEGER NOT NULL,               -- seconds since the epoch
    data          BLOB    NOT NULL,               -- storage/records/usage_history.py packs it
    PRIMARY KEY (series, step, begin)
) STRICT, WITHOUT ROWID;

CREATE INDEX usage_blocks_by_age ON usage_blocks (step, begin);

-- Input files of jobs and kept files of tasks, by the SHA-256 of their content. The contents are
-- files below the directory of the store. Written by daemon/jobs/payload_files.py: with the first
-- chunk, when a file is complete or used, and when no job or allocation uses it.
CREATE TABLE payload_files (
    namespace     TEXT    NOT NULL,
    digest        TEXT    NOT NULL CHECK (length(digest) = 64),
    size          INTEGER NOT NULL CHECK (size >= 0),
    is_complete   INTEGER NOT NULL CHECK (is_complete IN (0, 1)),
    modify_time   INTEGER NOT NULL,               -- last upload or dispatch with this file
    holder        TEXT    NOT NULL DEFAULT '',    -- the unfinished task or attempt that stored it
    PRIMARY KEY (namespace, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX payload_files_by_time ON payload_files (modify_time);
CREATE INDEX payload_files_held ON payload_files (holder) WHERE holder <> '';

-- Files of a child job, by their names in its artifacts. Written with the dispatch.
CREATE TABLE job_files (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    digest        TEXT    NOT NULL,
    PRIMARY KEY (namespace, job_id, name),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE,
    FOREIGN KEY (namespace, digest) REFERENCES payload_files (namespace, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX job_files_by_digest ON job_files (namespace, digest);

-- Files of tasks that `steward_keep` retains, below `alloc/` or the task directory. Written
-- by daemon/runner/setup/file_keeper.py at the end of the task; deleted with the allocation.
CREATE TABLE kept_files (
    alloc_id      TEXT    NOT NULL,
    task          TEXT    NOT NULL,
    path          TEXT    NOT NULL,
    namespace     TEXT    NOT NULL,
    digest        TEXT    NOT NULL,
    PRIMARY KEY (alloc_id, task, path),
    FOREIGN KEY (alloc_id) REFERENCES allocations (id) ON DELETE CASCADE,
    FOREIGN KEY (namespace, digest) REFERENCES payload_files (namespace, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX kept_files_by_digest ON kept_files (namespace, digest);
