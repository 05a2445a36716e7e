-- The time at which a run times out, or its clean-up ends.
ALTER TABLE runs ADD COLUMN deadline INTEGER NOT NULL DEFAULT 0;
