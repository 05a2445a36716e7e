"""Configurations and roles of auth methods. They are deleted with their mount."""

from storage.queries.documents import decode_row
from storage.queries.pages import ALL, KeyRange
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.identity import LoginRole, MethodConfig
from storage.writer import Transaction

_CONFIG = "SELECT mount, document FROM method_configs WHERE mount = :mount"
_PUT_CONFIG = """
    INSERT INTO method_configs (mount, document) VALUES (:mount, :document)
    ON CONFLICT (mount) DO UPDATE SET document = excluded.document
"""
_REMOVE_CONFIG = "DELETE FROM method_configs WHERE mount = :mount"
_CONFIGURED = "SELECT mount FROM method_configs ORDER BY mount"
_ROLE = "SELECT mount, name, document FROM login_roles WHERE mount = :mount AND name = :name"
_ROLE_NAMES = """
    SELECT name FROM login_roles
     WHERE mount = :mount AND name > :after
  ORDER BY name LIMIT :most
"""
_PUT_ROLE = """
    INSERT INTO login_roles (mount, name, document) VALUES (:mount, :name, :document)
    ON CONFLICT (mount, name) DO UPDATE SET document = excluded.document
"""
_REMOVE_ROLE = "DELETE FROM login_roles WHERE mount = :mount AND name = :name"


def config(db: ReadSnapshot, mount: str) -> MethodConfig | None:
    """Return the configuration of the mount with this accessor, or None."""
    row = db.one(_CONFIG, {"mount": mount})
    return decode_row(row, MethodConfig, "method_configs") if row else None


def configured(db: ReadSnapshot) -> list[str]:
    """Return the accessors of all mounts with a configuration."""
    return [row["mount"] for row in db.all(_CONFIGURED)]


def put_config(tx: Transaction, mount: str, document: MethodConfig) -> None:
    """Store a configuration."""
    tx.execute(_PUT_CONFIG, {"mount": mount, "document": encode(document).decode()})
    tx.touch("method_configs", f"method-configs/{mount}")


def remove_config(tx: Transaction, mount: str) -> None:
    """Delete a configuration."""
    tx.execute(_REMOVE_CONFIG, {"mount": mount})
    tx.touch("method_configs", f"method-configs/{mount}")


def role(db: ReadSnapshot, mount: str, name: str) -> LoginRole | None:
    """Return the role with this name, or None. Names are in lower case."""
    row = db.one(_ROLE, {"mount": mount, "name": name})
    return decode_row(row, LoginRole, "login_roles") if row else None


def role_names(db: ReadSnapshot, mount: str, span: KeyRange = ALL) -> list[str]:
    """Return the sorted names of a mount's roles."""
    return [row["name"] for row in db.all(_ROLE_NAMES, {"mount": mount, **span.values})]


def put_role(tx: Transaction, mount: str, name: str, document: LoginRole) -> None:
    """Store a role."""
    parameters = {"mount": mount, "name": name, "document": encode(document).decode()}
    tx.execute(_PUT_ROLE, parameters)
    tx.touch("login_roles", f"login-roles/{mount}/{name}")


def remove_role(tx: Transaction, mount: str, name: str) -> bool:
    """Delete a role; return whether it existed."""
    existed = tx.execute(_REMOVE_ROLE, {"mount": mount, "name": name}) > 0
    tx.touch("login_roles", f"login-roles/{mount}/{name}")
    return existed
