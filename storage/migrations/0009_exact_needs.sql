-- Blocked evaluations store all resources that they need, also ports, cores, devices and the job
-- type.
ALTER TABLE evaluations ADD COLUMN needs_besides TEXT NOT NULL DEFAULT '';
UPDATE evaluations
   SET needs_besides = json_object('type', document ->> '$.Type')
 WHERE status = 'blocked' AND (needs_memory > 0 OR needs_cpu > 0 OR needs_disk > 0);

DROP INDEX evaluations_blocked;
CREATE INDEX evaluations_blocked    ON evaluations (needs_memory, needs_cpu, needs_disk, needs_besides,
                                                    priority DESC, create_index, tried_index)
                                    WHERE status = 'blocked'
