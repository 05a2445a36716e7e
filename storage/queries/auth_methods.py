"""Login methods of the jobs API and their binding rules."""

import sqlite3
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from storage.queries.documents import decode_row, readable
from storage.queries.pages import PageRequest, by_name
from storage.read_pool import ReadSnapshot
from storage.records.auth_method import AuthMethod, BindingRule
from storage.records.codec import encode
from storage.writer import Transaction

R = TypeVar("R", AuthMethod, BindingRule)

_PUT = """
    INSERT INTO auth_methods (name, is_default, document, create_index, modify_index)
    VALUES (:name, :is_default, :document, :index, :index)
    ON CONFLICT (name) DO UPDATE
       SET is_default = excluded.is_default, document = excluded.document,
           modify_index = excluded.modify_index
"""
_COLUMNS = "SELECT name, document, create_index, modify_index FROM auth_methods"
_FIND = f"{_COLUMNS} WHERE name = :name"
_DEFAULT = f"{_COLUMNS} WHERE is_default = 1"
_REMOVE = "DELETE FROM auth_methods WHERE name = :name"

_PUT_RULE = """
    INSERT INTO binding_rules (id, auth_method, document, create_index, modify_index)
    VALUES (:id, :auth_method, :document, :index, :index)
    ON CONFLICT (id) DO UPDATE
       SET document = excluded.document, modify_index = excluded.modify_index
"""
_RULE_COLUMNS = "SELECT id, document, create_index, modify_index FROM binding_rules"
_FIND_RULE = f"{_RULE_COLUMNS} WHERE id = :id"
_OF_METHOD = f"{_RULE_COLUMNS} WHERE auth_method = :name ORDER BY id LIMIT :most"
_COUNT = """
    SELECT count(*) AS number
      FROM (SELECT 1 FROM binding_rules WHERE auth_method = :name LIMIT :most)
"""
_IDS = "SELECT id FROM binding_rules WHERE auth_method = :name"
_REMOVE_RULE = "DELETE FROM binding_rules WHERE id = :id"


def _from(row: sqlite3.Row) -> AuthMethod:
    return _with_indexes(decode_row(row, AuthMethod, "auth_methods"), row)


def _rule(row: sqlite3.Row) -> BindingRule:
    return _with_indexes(decode_row(row, BindingRule, "binding_rules"), row)


def _with_indexes(record: R, row: sqlite3.Row) -> R:
    return msgspec.structs.replace(
        record, create_index=row["create_index"], modify_index=row["modify_index"]
    )


def put(tx: Transaction, method: AuthMethod) -> AuthMethod:
    """Store a method."""
    values = {"name": method.name, "is_default": int(method.default)}
    tx.execute(_PUT, {**values, "document": encode(method).decode(), "index": tx.index})
    tx.touch("auth_methods", f"auth_methods/{method.name}")
    created = method.create_index or tx.index
    return msgspec.structs.replace(method, create_index=created, modify_index=tx.index)


def find(db: ReadSnapshot, name: str) -> AuthMethod | None:
    """Return a method, or None."""
    row = db.one(_FIND, {"name": name})
    return _from(row) if row else None


def default(db: ReadSnapshot) -> AuthMethod | None:
    """Return the default method, or None."""
    row = db.one(_DEFAULT, {})
    return _from(row) if row else None


def page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[AuthMethod]:
    """Yield methods by name."""
    return readable(db, by_name(db, _COLUMNS, "name", page_request), _from)


def remove(tx: Transaction, name: str) -> bool:
    """Delete a method and its binding rules; return whether the method existed."""
    is_removed = tx.execute(_REMOVE, {"name": name}) > 0
    for row in tx.all(_IDS, {"name": name}):
        remove_rule(tx, row["id"])
    tx.touch("auth_methods", f"auth_methods/{name}")
    return is_removed


# --- binding rules ---


def put_rule(tx: Transaction, rule: BindingRule) -> BindingRule:
    """Store a rule."""
    values = {"id": rule.id, "auth_method": rule.auth_method, "document": encode(rule).decode()}
    tx.execute(_PUT_RULE, {**values, "index": tx.index})
    tx.touch("binding_rules", f"binding_rules/{rule.id}")
    created = rule.create_index or tx.index
    return msgspec.structs.replace(rule, create_index=created, modify_index=tx.index)


def find_rule(db: ReadSnapshot, rule_id: str) -> BindingRule | None:
    """Return a rule, or None."""
    row = db.one(_FIND_RULE, {"id": rule_id})
    return _rule(row) if row else None


def rule_page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[BindingRule]:
    """Yield rules by ID."""
    return readable(db, by_name(db, _RULE_COLUMNS, "id", page_request), _rule)


def rules_of(db: ReadSnapshot, method: str, most: int) -> list[BindingRule]:
    """Return up to `most` rules of a method, by ID."""
    rows = db.all(_OF_METHOD, {"name": method, "most": most})
    return [_rule(row) for row in rows]


def count_rules(db: ReadSnapshot, method: str, most: int) -> int:
    """Return the number of rules of a method, counting up to `most`."""
    row = db.one(_COUNT, {"name": method, "most": most})
    return int(row["number"]) if row else 0


def remove_rule(tx: Transaction, rule_id: str) -> bool:
    """Delete a rule; return whether it existed."""
    is_removed = tx.execute(_REMOVE_RULE, {"id": rule_id}) > 0
    tx.touch("binding_rules", f"binding_rules/{rule_id}")
    return is_removed
