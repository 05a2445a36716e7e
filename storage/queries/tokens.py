"""Tokens: found by a keyed hash of their secret, or by their accessor."""

import sqlite3

import msgspec

from storage.readers import Snapshot
from storage.records.acl import Token, TokenRole
from storage.records.codec import encode
from storage.writer import Transaction

_COLUMNS = "SELECT document, expires_at, uses_left, create_index, modify_index FROM tokens"
_ADD = """
    INSERT INTO tokens (secret_hash, accessor, parent, mount, expires_at, uses_left, document,
                        create_index, modify_index)
    VALUES (:secret_hash, :accessor, :parent, :mount, :expires_at, :uses_left, :document,
            :index, :index)
"""
_UPDATE = """
    UPDATE tokens
       SET parent = :parent, expires_at = :expires_at, uses_left = :uses_left,
           document = :document, modify_index = :index
     WHERE accessor = :accessor
"""
_OF_SECRET = f"{_COLUMNS} WHERE secret_hash = :secret_hash"
_FIND = f"{_COLUMNS} WHERE accessor = :accessor"
_EVERY = f"{_COLUMNS} WHERE accessor >= :first AND accessor < :end"
_SPEND = "UPDATE tokens SET uses_left = uses_left - 1 WHERE accessor = :accessor AND uses_left > 1"
_TABLE_INDEX = "tokens"


def _from(row: sqlite3.Row) -> Token:
    return msgspec.structs.replace(
        msgspec.json.decode(row["document"], type=Token),
        expires_at=row["expires_at"],
        uses_left=row["uses_left"],
        create_index=row["create_index"],
        modify_index=row["modify_index"],
    )


def _values(tx: Transaction, token: Token) -> dict[str, object]:
    """Return the columns of a token; what has a column is not in the document."""
    bare = msgspec.structs.replace(
        token, expires_at=None, uses_left=None, create_index=0, modify_index=0
    )
    return {
        "accessor": token.accessor,
        "parent": token.parent,
        "expires_at": token.expires_at,
        "uses_left": token.uses_left,
        "document": encode(bare).decode(),
        "index": tx.index,
    }


def add(tx: Transaction, token: Token, secret_hash: bytes) -> Token:
    """Store a new token."""
    tx.execute(_ADD, {**_values(tx, token), "secret_hash": secret_hash, "mount": token.mount})
    tx.touch(_TABLE_INDEX, f"tokens/{token.accessor}")
    return msgspec.structs.replace(token, create_index=tx.index, modify_index=tx.index)


def update(tx: Transaction, token: Token) -> Token:
    """Store what has changed about a token."""
    tx.execute(_UPDATE, _values(tx, token))
    tx.touch(_TABLE_INDEX, f"tokens/{token.accessor}")
    return msgspec.structs.replace(token, modify_index=tx.index)


def of_secret(db: Snapshot, secret_hash: bytes) -> Token | None:
    """Return the token whose secret has this hash."""
    row = db.one(_OF_SECRET, {"secret_hash": secret_hash})
    return _from(row) if row else None


def find(db: Snapshot, accessor: str) -> Token | None:
    """Return the token of an accessor."""
    row = db.one(_FIND, {"accessor": accessor})
    return _from(row) if row else None


def every(db: Snapshot, prefix: str = "") -> list[Token]:
    """Return the tokens whose accessor begins with `prefix`, in the order of their making."""
    rows = db.all(_EVERY, {"first": prefix, "end": prefix + "\U0010ffff"})
    return sorted(map(_from, rows), key=lambda token: (token.create_index, token.accessor))


def accessors(db: Snapshot) -> list[str]:
    """Return the accessors of all tokens."""
    return [row["accessor"] for row in db.all("SELECT accessor FROM tokens ORDER BY accessor")]


def spend(tx: Transaction, accessor: str) -> None:
    """Count one use of a token that may be used some times only; its last use ends it."""
    if not tx.execute(_SPEND, {"accessor": accessor}):
        remove(tx, accessor)


# ---- ending ----------------------------------------------------------------------------------

SECRETS = "token-secrets/"  # before the accessor: where the secret of a token is kept, if it is

# A token ends with its parent, and so on down.
_WITH_ENDED = """
    WITH RECURSIVE ended (accessor) AS (
        SELECT :accessor
         UNION
        SELECT tokens.accessor FROM tokens JOIN ended ON tokens.parent = ended.accessor
                               WHERE tokens.parent <> ''
    )
"""
_REMOVE = f"""
    DELETE FROM tokens WHERE accessor IN ({_WITH_ENDED} SELECT accessor FROM ended)
"""  # nothing of a request stands in it
_REMOVE_SECRETS = f"""
    DELETE FROM secrets WHERE place IN ({_WITH_ENDED} SELECT '{SECRETS}' || accessor FROM ended)
"""  # nothing of a request stands in it
_ORPHAN = """
    UPDATE tokens SET parent = '', document = json_remove(document, '$.parent')
     WHERE parent = :accessor AND parent <> ''
"""
_OF_MOUNT = "SELECT accessor FROM tokens WHERE mount = :mount AND mount <> '' LIMIT :most"
_ISSUERS = "SELECT DISTINCT mount FROM tokens WHERE mount <> ''"
_ENDED = """
    SELECT accessor FROM tokens
     WHERE expires_at IS NOT NULL AND expires_at <= :now
  ORDER BY expires_at LIMIT :most
"""
_NEXT_END = "SELECT min(expires_at) AS time FROM tokens WHERE expires_at IS NOT NULL"


def remove(tx: Transaction, accessor: str) -> int:
    """Remove a token and all that were made with it; return how many there were."""
    tx.execute(_REMOVE_SECRETS, {"accessor": accessor})
    count = tx.execute(_REMOVE, {"accessor": accessor})
    if count:
        tx.touch(_TABLE_INDEX, f"tokens/{accessor}")
    return count


def orphan_children(tx: Transaction, accessor: str) -> None:
    """Let the tokens that were made with this one live without it."""
    tx.execute(_ORPHAN, {"accessor": accessor})


def of_mount(db: Snapshot, mount: str, most: int) -> list[str]:
    """Return accessors of at most so many tokens that a login method issued."""
    return [row["accessor"] for row in db.all(_OF_MOUNT, {"mount": mount, "most": most})]


def issuers(db: Snapshot) -> list[str]:
    """Return the accessors of the login methods of which there are tokens."""
    return [row["mount"] for row in db.all(_ISSUERS)]


def ended(db: Snapshot, now: int, most: int) -> list[str]:
    """Return accessors of at most so many tokens whose time is over."""
    return [row["accessor"] for row in db.all(_ENDED, {"now": now, "most": most})]


def next_end(db: Snapshot) -> int | None:
    """Return when the time of the next token is over."""
    row = db.one(_NEXT_END)
    time: int | None = row["time"] if row else None
    return time


# ---- what hangs on tokens --------------------------------------------------------------------

_PUT_ROLE = """
    INSERT INTO token_roles (name, document) VALUES (:name, :document)
    ON CONFLICT (name) DO UPDATE SET document = excluded.document
"""
_FIND_ROLE = "SELECT document FROM token_roles WHERE name = :name"
_ROLES = "SELECT name FROM token_roles ORDER BY name"
_REMOVE_ROLE = "DELETE FROM token_roles WHERE name = :name"
_WRAP = "INSERT INTO wrapped_answers (accessor, path, sealed) VALUES (:accessor, :path, :sealed)"
_WRAPPED = "SELECT path, sealed FROM wrapped_answers WHERE accessor = :accessor"


def put_role(tx: Transaction, role: TokenRole) -> None:
    """Store a role by whose name tokens are made."""
    tx.execute(_PUT_ROLE, {"name": role.name, "document": encode(role).decode()})
    tx.touch("token_roles")


def find_role(db: Snapshot, name: str) -> TokenRole | None:
    """Return a role by whose name tokens are made."""
    row = db.one(_FIND_ROLE, {"name": name})
    return msgspec.json.decode(row["document"], type=TokenRole) if row else None


def roles(db: Snapshot) -> list[str]:
    """Return the names of these roles."""
    return [row["name"] for row in db.all(_ROLES)]


def remove_role(tx: Transaction, name: str) -> None:
    """Remove such a role."""
    tx.execute(_REMOVE_ROLE, {"name": name})
    tx.touch("token_roles")


def wrap(tx: Transaction, accessor: str, path: str, sealed: bytes) -> None:
    """Keep an answer for whoever holds this token."""
    tx.execute(_WRAP, {"accessor": accessor, "path": path, "sealed": sealed})


def wrapped(db: Snapshot, accessor: str) -> tuple[str, bytes] | None:
    """Return the path of the request that a kept answer is for, and the answer."""
    row = db.one(_WRAPPED, {"accessor": accessor})
    return (row["path"], bytes(row["sealed"])) if row else None
