-- Files of ended attempts on a cluster, which no attempt stores again.
CREATE INDEX payload_files_held ON payload_files (holder) WHERE holder <> '';
UPDATE payload_files SET holder = ''
 WHERE holder GLOB '*/*/[0-9]*'
   AND holder NOT IN (SELECT allocation_id || '/' || task || '/' || number FROM cluster_runs
                       WHERE status IN ('submitting', 'waiting', 'running'));
