-- Sums of the resources of each node's allocations, so that the scheduler reads one row.
CREATE TABLE holdings (
    node_id TEXT    PRIMARY KEY,
    number  INTEGER NOT NULL CHECK (number >= 0),
    cpu     INTEGER NOT NULL,
    memory  INTEGER NOT NULL,
    disk    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO holdings
SELECT node_id, count(*), sum(cpu), sum(memory), sum(disk)
  FROM allocations
 WHERE client_status IN ('pending', 'running', 'unknown')
 GROUP BY node_id;

CREATE TRIGGER allocations_begin_to_hold AFTER INSERT ON allocations
WHEN NEW.client_status IN ('pending', 'running', 'unknown')
BEGIN
    INSERT INTO holdings VALUES (NEW.node_id, 1, NEW.cpu, NEW.memory, NEW.disk)
        ON CONFLICT (node_id) DO UPDATE
       SET number = number + 1, cpu = cpu + excluded.cpu, memory = memory + excluded.memory,
           disk = disk + excluded.disk;
END;
CREATE TRIGGER allocations_end_or_come_back AFTER UPDATE OF client_status ON allocations
WHEN (NEW.client_status IN ('pending', 'running', 'unknown'))
     <> (OLD.client_status IN ('pending', 'running', 'unknown'))
BEGIN
    UPDATE holdings
       SET number = number + way, cpu = cpu + way * NEW.cpu, memory = memory + way * NEW.memory,
           disk = disk + way * NEW.disk
      FROM (SELECT iif(NEW.client_status IN ('pending', 'running', 'unknown'), 1, -1) AS way)
     WHERE node_id = NEW.node_id;
END;
CREATE TRIGGER allocations_go AFTER DELETE ON allocations
WHEN OLD.client_status IN ('pending', 'running', 'unknown')
BEGIN
    UPDATE holdings
       SET number = number - 1, cpu = cpu - OLD.cpu, memory = memory - OLD.memory,
           disk = disk - OLD.disk
     WHERE node_id = OLD.node_id;
END;

DROP INDEX allocations_holding;
CREATE INDEX allocations_holding ON allocations (node_id)
                                 WHERE client_status IN ('pending', 'running', 'unknown');
