-- The Slurm array of which an attempt is an element, and the number of the element.
ALTER TABLE cluster_runs ADD COLUMN array TEXT NOT NULL DEFAULT '';
ALTER TABLE cluster_runs ADD COLUMN element INTEGER NOT NULL DEFAULT -1;
