-- Leases of a mount are read in the order of their accessors.
DROP INDEX tokens_by_mount;
CREATE INDEX tokens_by_mount ON tokens (mount, accessor) WHERE mount <> '';
