-- The task or attempt that stored a file and has not ended: after a crash it stores the file again.
ALTER TABLE payload_files ADD COLUMN holder TEXT NOT NULL DEFAULT '';
