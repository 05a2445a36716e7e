-- Calendars, the jobs that use them, and the next launch of a job with a calendar.
ALTER TABLE periodic_jobs ADD COLUMN next_launch INTEGER;
CREATE TABLE calendars (
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    version       INTEGER NOT NULL CHECK (version >= 1),
    document      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE calendar_versions (
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    version       INTEGER NOT NULL CHECK (version >= 1),
    document      TEXT    NOT NULL,
    person        TEXT    NOT NULL,
    time          INTEGER NOT NULL,
    PRIMARY KEY (namespace, name, version),
    FOREIGN KEY (namespace, name) REFERENCES calendars (namespace, name) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE TABLE calendar_parts (
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    part          TEXT    NOT NULL,
    PRIMARY KEY (namespace, name, part),
    FOREIGN KEY (namespace, name) REFERENCES calendars (namespace, name) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX calendar_parts_by_part ON calendar_parts (namespace, part, name);
CREATE TABLE calendar_jobs (
    namespace     TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    calendar      TEXT    NOT NULL,
    PRIMARY KEY (namespace, job_id, calendar),
    FOREIGN KEY (namespace, job_id) REFERENCES jobs (namespace, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX calendar_jobs_by_calendar ON calendar_jobs (namespace, calendar, job_id);
