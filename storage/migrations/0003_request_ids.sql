-- Which request an evaluation, and the last decision about an allocation, go back to.
ALTER TABLE evaluations ADD COLUMN request_id TEXT NOT NULL DEFAULT '';
ALTER TABLE allocations ADD COLUMN request_id TEXT NOT NULL DEFAULT ''
