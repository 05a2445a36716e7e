-- An index of host volumes. Their documents remain in the settings.
CREATE TABLE host_volumes (
    id               TEXT    NOT NULL PRIMARY KEY,
    namespace        TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    node_id          TEXT    NOT NULL,
    state            TEXT    NOT NULL,
    host_path        TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX host_volumes_by_name ON host_volumes (name);
CREATE INDEX host_volumes_by_namespace ON host_volumes (namespace, id);
CREATE INDEX host_volumes_unfinished ON host_volumes (id) WHERE state <> 'ready';
INSERT INTO host_volumes (id, namespace, name, node_id, state, host_path)
SELECT substr(name, 13), json_extract(value, '$.Namespace'), json_extract(value, '$.Name'),
       json_extract(value, '$.NodeID'), json_extract(value, '$.State'),
       json_extract(value, '$.HostPath')
  FROM settings
 WHERE name >= 'host-volume/' AND name < 'host-volume0';
