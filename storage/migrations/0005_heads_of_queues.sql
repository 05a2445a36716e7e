-- What is ready and what waits for room is found by its head, however much there is of it.
DROP INDEX evaluations_to_do;
DROP INDEX evaluations_blocked;

CREATE INDEX evaluations_ready      ON evaluations (priority DESC, create_index)
                                    WHERE status = 'pending' AND wait_until = 0;
CREATE INDEX evaluations_delayed    ON evaluations (wait_until)
                                    WHERE status = 'pending' AND wait_until > 0;
CREATE INDEX evaluations_blocked    ON evaluations (needs_memory, needs_cpu, needs_disk,
                                                    priority DESC, create_index, tried_index)
                                    WHERE status = 'blocked';
