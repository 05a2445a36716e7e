-- The request that caused an evaluation, and the last decision about an allocation.
ALTER TABLE evaluations ADD COLUMN request_id TEXT NOT NULL DEFAULT '';
ALTER TABLE allocations ADD COLUMN request_id TEXT NOT NULL DEFAULT ''
