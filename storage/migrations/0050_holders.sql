-- The task or attempt that stored a file and has not ended. It stores the file again after a crash.
ALTER TABLE payload_files ADD COLUMN holder TEXT NOT NULL DEFAULT '';
