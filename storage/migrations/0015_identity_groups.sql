-- Groups of entities. Their policies apply to every member, also through nested groups.
-- Written by daemon/identity.
CREATE TABLE identity_groups (
    id            TEXT    NOT NULL PRIMARY KEY,
    name          TEXT    NOT NULL UNIQUE,
    document      TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- Members of groups. Logins write the members of a group that has an alias.
CREATE TABLE identity_group_members (
    member        TEXT    NOT NULL,               -- id of an entity or of a group
    group_id      TEXT    NOT NULL REFERENCES identity_groups (id) ON DELETE CASCADE,
    is_group      INTEGER NOT NULL,
    PRIMARY KEY (member, group_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX identity_group_members_by_group ON identity_group_members (group_id);

-- Group aliases: the name of a group in the `groups` claim of a mount's tokens.
CREATE TABLE identity_group_aliases (
    mount         TEXT    NOT NULL REFERENCES mounts (accessor) ON DELETE CASCADE,
    name          TEXT    NOT NULL,
    id            TEXT    NOT NULL UNIQUE,
    group_id      TEXT    NOT NULL UNIQUE REFERENCES identity_groups (id) ON DELETE CASCADE,
    document      TEXT    NOT NULL,
    PRIMARY KEY (mount, name)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER identity_group_aliases_go AFTER DELETE ON identity_group_aliases
BEGIN
    DELETE FROM identity_group_members WHERE group_id = OLD.group_id;
END;

CREATE TRIGGER identity_groups_go AFTER DELETE ON identity_groups
BEGIN
    DELETE FROM identity_group_members WHERE member = OLD.id;
END;

CREATE TRIGGER entities_go AFTER DELETE ON entities
BEGIN
    DELETE FROM identity_group_members WHERE member = OLD.id;
END;
