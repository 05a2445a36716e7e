"""ACL tokens: found by a keyed hash of their secret, or by accessor."""

import sqlite3
from collections.abc import Iterator

import msgspec

from storage.queries.documents import decode_row, readable
from storage.queries.pages import ALL, KeyRange, PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.acl import Token, TokenRole
from storage.records.codec import encode
from storage.writer import Transaction

_COLUMNS = (
    "SELECT accessor, document, expires_at, uses_left, create_index, modify_index FROM tokens"
)
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
_ACCESSORS = "SELECT accessor FROM tokens WHERE accessor > :after ORDER BY accessor LIMIT :most"
_OF_SECRET = f"{_COLUMNS} WHERE secret_hash = :secret_hash"
_FIND = f"{_COLUMNS} WHERE accessor = :accessor"
_SPEND = "UPDATE tokens SET uses_left = uses_left - 1 WHERE accessor = :accessor AND uses_left > 1"
_TABLE_INDEX = "tokens"


def _from(row: sqlite3.Row) -> Token:
    return msgspec.structs.replace(
        decode_row(row, Token, "tokens"),
        expires_at=row["expires_at"],
        uses_left=row["uses_left"],
        create_index=row["create_index"],
        modify_index=row["modify_index"],
    )


def _values(tx: Transaction, token: Token) -> dict[str, object]:
    """Return the columns of a token; its document has the other fields."""
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
    """Store a changed token."""
    tx.execute(_UPDATE, _values(tx, token))
    tx.touch(_TABLE_INDEX, f"tokens/{token.accessor}")
    return msgspec.structs.replace(token, modify_index=tx.index)


def find_by_secret(db: ReadSnapshot, secret_hash: bytes) -> Token | None:
    """Return the token whose secret has this hash, or None."""
    row = db.one(_OF_SECRET, {"secret_hash": secret_hash})
    return _from(row) if row else None


def find(db: ReadSnapshot, accessor: str) -> Token | None:
    """Return the token that has this accessor, or None."""
    row = db.one(_FIND, {"accessor": accessor})
    return _from(row) if row else None


def page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[Token]:
    """Yield tokens in creation order; the prefix applies to the accessor."""
    conditions, values = [], dict[str, object]()
    if page_request.prefix:
        conditions.append("accessor >= :prefix AND accessor < :prefix || char(1114111)")
        values["prefix"] = page_request.prefix
    if page_request.start is not None:
        conditions.append(
            f"(create_index, accessor) {'<=' if page_request.reverse else '>='} (:first, :id)"
        )
        values["first"], values["id"] = page_request.start
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    direction = " DESC" if page_request.reverse else ""
    rows = db.each(
        f"{_COLUMNS}{where} ORDER BY create_index{direction}, accessor{direction}", values
    )
    return readable(db, rows, _from)


def list_all(db: ReadSnapshot) -> list[Token]:
    """Return all tokens in creation order."""
    return list(page(db, PageRequest(namespace="*")))


def accessors(db: ReadSnapshot, span: KeyRange = ALL) -> list[str]:
    """Return the sorted accessors of tokens."""
    return [row["accessor"] for row in db.all(_ACCESSORS, span.values)]


def use_once(tx: Transaction, accessor: str) -> None:
    """Count one use of a token with limited uses; the last use revokes it."""
    if not tx.execute(_SPEND, {"accessor": accessor}):
        remove(tx, accessor)


# --- revocation ---

SECRETS = "token-secrets/"  # path prefix of stored token secrets, before the accessor

# A token is revoked with its parent, recursively.
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
"""  # constant text, without values of the request
_REMOVE_SECRETS = f"""
    DELETE FROM secrets WHERE place IN ({_WITH_ENDED} SELECT '{SECRETS}' || accessor FROM ended)
"""  # constant text, without values of the request
_ORPHAN = """
    UPDATE tokens SET parent = '', document = json_remove(document, '$.parent')
     WHERE parent = :accessor AND parent <> ''
"""
_OF_MOUNT = """
    SELECT accessor FROM tokens
     WHERE mount = :mount AND mount <> '' AND accessor > :after
  ORDER BY accessor LIMIT :most
"""
_OF_OTHER_PATH = """
    SELECT accessor FROM tokens
     WHERE mount = :mount AND mount <> '' AND json_extract(document, '$.path') <> :path
     LIMIT :most
"""
_ISSUERS = "SELECT DISTINCT mount FROM tokens WHERE mount <> ''"
_ENDED = """
    SELECT accessor FROM tokens
     WHERE expires_at IS NOT NULL AND expires_at <= :now
  ORDER BY expires_at LIMIT :most
"""
_NEXT_END = "SELECT min(expires_at) AS time FROM tokens WHERE expires_at IS NOT NULL"


def remove(tx: Transaction, accessor: str) -> int:
    """Delete a token and its descendants; return their number."""
    tx.execute(_REMOVE_SECRETS, {"accessor": accessor})
    count = tx.execute(_REMOVE, {"accessor": accessor})
    if count:
        tx.touch(_TABLE_INDEX, f"tokens/{accessor}")
    return count


def orphan_children(tx: Transaction, accessor: str) -> None:
    """Detach the children of a token, so that they outlive it."""
    tx.execute(_ORPHAN, {"accessor": accessor})


def issued_by_mount(db: ReadSnapshot, mount: str, span: KeyRange) -> list[str]:
    """Return the sorted accessors of tokens that an auth method issued."""
    return [row["accessor"] for row in db.all(_OF_MOUNT, {"mount": mount, **span.values})]


def issued_at_other_paths(db: ReadSnapshot, mount: str, path: str, most: int) -> list[str]:
    """Return up to `most` accessors of tokens that logins at paths other than `path` issued."""
    values = {"mount": mount, "path": path, "most": most}
    return [row["accessor"] for row in db.all(_OF_OTHER_PATH, values)]


def issuers(db: ReadSnapshot) -> list[str]:
    """Return the accessors of the auth methods that issued the stored tokens."""
    return [row["mount"] for row in db.all(_ISSUERS)]


def ended(db: ReadSnapshot, now: int, most: int) -> list[str]:
    """Return up to `most` accessors of expired tokens."""
    return [row["accessor"] for row in db.all(_ENDED, {"now": now, "most": most})]


def next_end(db: ReadSnapshot) -> int | None:
    """Return the next expiry time of any token, or None."""
    row = db.one(_NEXT_END)
    time: int | None = row["time"] if row else None
    return time


# --- token roles and wrapped responses ---

_PUT_ROLE = """
    INSERT INTO token_roles (name, document) VALUES (:name, :document)
    ON CONFLICT (name) DO UPDATE SET document = excluded.document
"""
_FIND_ROLE = "SELECT name, document FROM token_roles WHERE name = :name"
_ROLES = "SELECT name FROM token_roles WHERE name > :after ORDER BY name LIMIT :most"
_REMOVE_ROLE = "DELETE FROM token_roles WHERE name = :name"
_WRAP = "INSERT INTO wrapped_answers (accessor, path, sealed) VALUES (:accessor, :path, :sealed)"
_WRAPPED = "SELECT path, sealed FROM wrapped_answers WHERE accessor = :accessor"


def put_role(tx: Transaction, role: TokenRole) -> None:
    """Store a token role."""
    tx.execute(_PUT_ROLE, {"name": role.name, "document": encode(role).decode()})
    tx.touch("token_roles")


def find_role(db: ReadSnapshot, name: str) -> TokenRole | None:
    """Return a token role, or None."""
    row = db.one(_FIND_ROLE, {"name": name})
    return decode_row(row, TokenRole, "token_roles") if row else None


def roles(db: ReadSnapshot, span: KeyRange = ALL) -> list[str]:
    """Return the sorted names of token roles."""
    return [row["name"] for row in db.all(_ROLES, span.values)]


def remove_role(tx: Transaction, name: str) -> bool:
    """Delete a token role; return whether it existed."""
    existed = tx.execute(_REMOVE_ROLE, {"name": name}) > 0
    tx.touch("token_roles")
    return existed


def wrap(tx: Transaction, accessor: str, path: str, sealed: bytes) -> None:
    """Store a response for the holder of a wrapping token."""
    tx.execute(_WRAP, {"accessor": accessor, "path": path, "sealed": sealed})


def wrapped(db: ReadSnapshot, accessor: str) -> tuple[str, bytes] | None:
    """Return the request path and the encrypted response of a wrapping token, or None."""
    row = db.one(_WRAPPED, {"accessor": accessor})
    return (row["path"], bytes(row["sealed"])) if row else None
