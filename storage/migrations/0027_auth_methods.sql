-- Auth methods of the jobs API, and rules that bind their logins to roles and policies.
CREATE TABLE auth_methods (
    name          TEXT    NOT NULL PRIMARY KEY,
    is_default    INTEGER NOT NULL CHECK (is_default IN (0, 1)),
    document      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX auth_methods_default ON auth_methods (is_default) WHERE is_default = 1;
CREATE TABLE binding_rules (
    id            TEXT    NOT NULL PRIMARY KEY,
    auth_method   TEXT    NOT NULL,
    document      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX binding_rules_by_method ON binding_rules (auth_method, id);
