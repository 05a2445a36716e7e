-- Templates render the instances of a service whose checks pass.
ALTER TABLE services ADD COLUMN ready INTEGER NOT NULL DEFAULT 1 CHECK (ready IN (0, 1));
