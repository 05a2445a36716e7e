-- The Slurm array of an attempt, and the number of its element.
ALTER TABLE cluster_runs ADD COLUMN array TEXT NOT NULL DEFAULT '';
ALTER TABLE cluster_runs ADD COLUMN element INTEGER NOT NULL DEFAULT -1;
