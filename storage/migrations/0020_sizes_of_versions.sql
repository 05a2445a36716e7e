-- The total size of a job's versions, so that it can be checked without reading them.
ALTER TABLE jobs ADD COLUMN versions_bytes INTEGER NOT NULL DEFAULT 0 CHECK (versions_bytes >= 0);

UPDATE jobs
   SET versions_bytes = (SELECT coalesce(sum(octets), 0)
                           FROM (SELECT length(CAST(v.document AS BLOB)) AS octets
                                   FROM job_versions v
                                  WHERE v.namespace = jobs.namespace AND v.job_id = jobs.id));
