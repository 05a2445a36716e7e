-- Existing stores keep the defaults of raw_exec, task users and metrics that an older version had.
CREATE TABLE kept_defaults (
    setting       TEXT    NOT NULL PRIMARY KEY,
    value         TEXT    NOT NULL                -- in JSON
) STRICT, WITHOUT ROWID;

INSERT INTO kept_defaults (setting, value) VALUES
    ('metrics_public', 'true'),
    ('raw_exec', 'true'),
    ('raw_exec_root', 'true'),
    ('task_users', '["*"]');
