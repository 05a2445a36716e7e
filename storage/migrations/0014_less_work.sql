-- Frequent writes must be cheap. A separate trigger subtracts the resources of an ended allocation.
-- One trigger for both cases doubled the cost of storing an end.
DROP TRIGGER allocations_end_or_come_back;
CREATE TRIGGER allocations_end AFTER UPDATE OF client_status ON allocations
WHEN OLD.client_status IN ('pending', 'running', 'unknown')
     AND NEW.client_status NOT IN ('pending', 'running', 'unknown')
BEGIN
    UPDATE holdings
       SET number = number - 1, cpu = cpu - OLD.cpu, memory = memory - OLD.memory,
           disk = disk - OLD.disk
     WHERE node_id = OLD.node_id;
END;
CREATE TRIGGER allocations_come_back AFTER UPDATE OF client_status ON allocations
WHEN OLD.client_status NOT IN ('pending', 'running', 'unknown')
     AND NEW.client_status IN ('pending', 'running', 'unknown')
BEGIN
    UPDATE holdings
       SET number = number + 1, cpu = cpu + NEW.cpu, memory = memory + NEW.memory,
           disk = disk + NEW.disk
     WHERE node_id = NEW.node_id;
END;

-- With `=` in the condition, SQLite prepared each statement again for each parent, because the use
-- of the index depended on the value.
DROP INDEX jobs_by_change;
CREATE INDEX jobs_by_change ON jobs (modify_index, namespace, id) WHERE parent_id IS '';
