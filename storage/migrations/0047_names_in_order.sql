-- Allocation names within an index, the order of allocations that hold resources, and evaluations
-- with unplaced allocations.
DROP INDEX allocations_of_job_in_order;
DROP INDEX allocations_holding;

CREATE INDEX allocations_of_job_in_order ON allocations (namespace, job_id, create_index, id, name);
CREATE INDEX allocations_holding       ON allocations (node_id, create_index, id)
                                       WHERE client_status IN ('pending', 'running', 'unknown');
CREATE INDEX evaluations_unplaced   ON evaluations (namespace, job_id)
                                    WHERE status = 'failed'
                                       OR CASE WHEN json_valid(document)
                                               THEN coalesce(document ->> '$.FailedTGAllocs', '{}') <> '{}'
                                               ELSE 1 END;
