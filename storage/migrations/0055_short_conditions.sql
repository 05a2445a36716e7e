-- For a list of three or more values in a condition, SQLite builds a table in memory in each write.
-- The client statuses of unfinished allocations are the last ones of the alphabet, from 'pending' on.
DROP INDEX evaluations_ended;
CREATE INDEX evaluations_ended      ON evaluations (modify_time)
                                    WHERE status NOT IN ('pending', 'blocked');
DROP INDEX allocations_holding;
CREATE INDEX allocations_holding       ON allocations (node_id, create_index, id)
                                       WHERE client_status >= 'pending';
DROP INDEX allocations_exclusive;
CREATE INDEX allocations_exclusive     ON allocations (node_id, exclusive)
                                       WHERE client_status >= 'pending'
                                         AND exclusive IS NOT NULL;
DROP INDEX allocations_unfinished;
CREATE INDEX allocations_unfinished    ON allocations (namespace, job_id)
                                       WHERE desired_status = 'run'
                                         AND client_status >= 'pending';
DROP INDEX allocations_ending;
CREATE INDEX allocations_ending        ON allocations (namespace, job_id)
                                       WHERE desired_status <> 'run'
                                         AND client_status >= 'pending';
DROP INDEX allocations_replaced;
CREATE INDEX allocations_replaced      ON allocations (namespace, job_id, modify_time)
                                       WHERE client_status < 'pending'
                                         AND (desired ->> '$.NextAllocation' IS NOT NULL
                                              OR desired_status <> 'run' AND job_type <> 'sysbatch'
                                                 AND desired ->> '$.Transition.MigrateDisablePlacement' IS NOT 1);
DROP INDEX allocations_considered;
CREATE INDEX allocations_considered    ON allocations (namespace, job_id, create_index, id)
                                       WHERE desired_status = 'run'
                                          OR client_status >= 'pending'
                                          OR desired ->> '$.Transition.MigrateDisablePlacement';
DROP INDEX allocations_unsettled;
CREATE INDEX allocations_unsettled ON allocations (namespace, job_id, create_index, id)
 WHERE (desired_status = 'run'
        OR client_status >= 'pending'
        OR CASE WHEN json_valid(desired)
                THEN desired ->> '$.Transition.MigrateDisablePlacement' END)
   AND NOT (job_type = 'batch' AND desired_status = 'run' AND client_status = 'complete'
            AND CASE WHEN json_valid(desired) THEN desired ->> '$.NextAllocation' END IS NULL
            AND CASE WHEN json_valid(client) THEN client ->> '$.Description' END
           IS NOT 'allocation exceeded max_run_duration');
DROP TRIGGER allocations_begin_to_hold;
CREATE TRIGGER allocations_begin_to_hold AFTER INSERT ON allocations
WHEN NEW.client_status >= 'pending'
BEGIN
    INSERT INTO holdings VALUES (NEW.node_id, 1, NEW.cpu, NEW.memory, NEW.disk)
        ON CONFLICT (node_id) DO UPDATE
       SET number = number + 1, cpu = cpu + excluded.cpu, memory = memory + excluded.memory,
           disk = disk + excluded.disk;
END;
DROP TRIGGER allocations_end;
CREATE TRIGGER allocations_end AFTER UPDATE OF client_status ON allocations
WHEN OLD.client_status >= 'pending'
     AND NEW.client_status < 'pending'
BEGIN
    UPDATE holdings
       SET number = number - 1, cpu = cpu - OLD.cpu, memory = memory - OLD.memory,
           disk = disk - OLD.disk
     WHERE node_id = OLD.node_id;
END;
DROP TRIGGER allocations_come_back;
CREATE TRIGGER allocations_come_back AFTER UPDATE OF client_status ON allocations
WHEN OLD.client_status < 'pending'
     AND NEW.client_status >= 'pending'
BEGIN
    UPDATE holdings
       SET number = number + 1, cpu = cpu + NEW.cpu, memory = memory + NEW.memory,
           disk = disk + NEW.disk
     WHERE node_id = NEW.node_id;
END;
DROP TRIGGER allocations_go;
CREATE TRIGGER allocations_go AFTER DELETE ON allocations
WHEN OLD.client_status >= 'pending'
BEGIN
    UPDATE holdings
       SET number = number - 1, cpu = cpu - OLD.cpu, memory = memory - OLD.memory,
           disk = disk - OLD.disk
     WHERE node_id = OLD.node_id;
END;
