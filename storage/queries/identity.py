"""What is set up for login methods: configuration and roles. All of it goes with its mount."""

import msgspec

from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.identity import LoginRole, MethodConfig
from storage.writer import Transaction

_CONFIG = "SELECT document FROM method_configs WHERE mount = :mount"
_PUT_CONFIG = """
    INSERT INTO method_configs (mount, document) VALUES (:mount, :document)
    ON CONFLICT (mount) DO UPDATE SET document = excluded.document
"""
_REMOVE_CONFIG = "DELETE FROM method_configs WHERE mount = :mount"
_CONFIGURED = "SELECT mount FROM method_configs ORDER BY mount"
_ROLE = "SELECT document FROM login_roles WHERE mount = :mount AND name = :name"
_ROLE_NAMES = "SELECT name FROM login_roles WHERE mount = :mount ORDER BY name"
_PUT_ROLE = """
    INSERT INTO login_roles (mount, name, document) VALUES (:mount, :name, :document)
    ON CONFLICT (mount, name) DO UPDATE SET document = excluded.document
"""
_REMOVE_ROLE = "DELETE FROM login_roles WHERE mount = :mount AND name = :name"


def config(db: Snapshot, mount: str) -> MethodConfig | None:
    """Return the configuration of the mount with this accessor."""
    row = db.one(_CONFIG, {"mount": mount})
    return msgspec.json.decode(row["document"], type=MethodConfig) if row else None


def configured(db: Snapshot) -> list[str]:
    """Return the accessors of all mounts that have a configuration."""
    return [row["mount"] for row in db.all(_CONFIGURED)]


def put_config(tx: Transaction, mount: str, document: MethodConfig) -> None:
    """Store a configuration."""
    tx.execute(_PUT_CONFIG, {"mount": mount, "document": encode(document).decode()})
    tx.touch("method_configs", f"method-configs/{mount}")


def remove_config(tx: Transaction, mount: str) -> None:
    """Remove a configuration."""
    tx.execute(_REMOVE_CONFIG, {"mount": mount})
    tx.touch("method_configs", f"method-configs/{mount}")


def role(db: Snapshot, mount: str, name: str) -> LoginRole | None:
    """Return a role by its name in lower case."""
    row = db.one(_ROLE, {"mount": mount, "name": name})
    return msgspec.json.decode(row["document"], type=LoginRole) if row else None


def role_names(db: Snapshot, mount: str) -> list[str]:
    """Return the names of all roles of a mount, in order."""
    return [row["name"] for row in db.all(_ROLE_NAMES, {"mount": mount})]


def put_role(tx: Transaction, mount: str, name: str, document: LoginRole) -> None:
    """Store a role."""
    parameters = {"mount": mount, "name": name, "document": encode(document).decode()}
    tx.execute(_PUT_ROLE, parameters)
    tx.touch("login_roles", f"login-roles/{mount}/{name}")


def remove_role(tx: Transaction, mount: str, name: str) -> None:
    """Remove a role."""
    tx.execute(_REMOVE_ROLE, {"mount": mount, "name": name})
    tx.touch("login_roles", f"login-roles/{mount}/{name}")
