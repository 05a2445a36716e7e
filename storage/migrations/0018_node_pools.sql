-- Node pools that users created and that may have no nodes.
CREATE TABLE node_pools (
    name          TEXT    NOT NULL PRIMARY KEY,
    document      TEXT    NOT NULL,
    create_index  INTEGER NOT NULL,
    modify_index  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
