-- An index of the policies of a job.
ALTER TABLE policies ADD COLUMN job_id TEXT;
UPDATE policies SET job_id = nullif(document ->> '$.JobACL.JobID', '') WHERE json_valid(document);
CREATE INDEX policies_of_jobs ON policies (job_id) WHERE job_id IS NOT NULL;
