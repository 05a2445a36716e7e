-- Periodic jobs whose slots are skipped until somebody lets them go on.
ALTER TABLE periodic_jobs ADD COLUMN paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1));
