-- An index of the leases of a mount, ordered by accessor.
DROP INDEX tokens_by_mount;
CREATE INDEX tokens_by_mount ON tokens (mount, accessor) WHERE mount <> '';
