-- Indexes of runnable and blocked evaluations, so that the first one is found without the others.
DROP INDEX evaluations_to_do;
DROP INDEX evaluations_blocked;

CREATE INDEX evaluations_ready      ON evaluations (priority DESC, create_index)
                                    WHERE status = 'pending' AND wait_until = 0;
CREATE INDEX evaluations_delayed    ON evaluations (wait_until)
                                    WHERE status = 'pending' AND wait_until > 0;
CREATE INDEX evaluations_blocked    ON evaluations (needs_memory, needs_cpu, needs_disk,
                                                    priority DESC, create_index, tried_index)
                                    WHERE status = 'blocked';
