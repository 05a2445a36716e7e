-- Paused periodic jobs: their slots are skipped until a user resumes them.
ALTER TABLE periodic_jobs ADD COLUMN paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1));
