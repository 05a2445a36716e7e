"""Bootstrap of the ACL system: the first management token, and the reset of the bootstrap.

Outside development, the daemon creates the token at its first start and writes its secret to a
private file. Otherwise, the first caller of the API could create the token and get full access.

After a reset, a caller can create another such token. A user resets the bootstrap with a file in
the store's directory. The file contains the index from the error message of a repeated bootstrap.
"""

import os
import re
from pathlib import Path

from daemon.acl.tokens import IssuedToken, TokenStore
from storage.errors import Malformed
from storage.queries import tokens as rows
from storage.read_pool import ReadSnapshot
from storage.records.acl import ROOT, Token
from storage.records.numbers import parse_integer
from storage.store import Store
from storage.writer import Transaction

SECRET_FILE = "bootstrap-token"  # noqa: S105  # a file name in the store's directory
RESET_FILE = "acl-bootstrap-reset"
_DONE = "acl_bootstrap"  # the table whose index records the last bootstrap
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


async def bootstrap(
    store: Store, tokens: TokenStore, *, secret: str, accessor: str, now: int, reset_index: int
) -> IssuedToken:
    """Create the first management token, with the secret `secret`.

    `reset_index` is the index in the administrator's reset file, or 0 if there is no valid file.
    Raises `Malformed` after an earlier bootstrap, unless its index is `reset_index`.
    """
    token = Token(
        accessor=accessor,
        name="Bootstrap Token",
        policies=(ROOT,),
        is_global=True,
        path="acl/bootstrap",
        created_at=now,
    )

    def write(tx: Transaction) -> Token:
        done = bootstrap_index(tx)
        if done and done != reset_index:
            raise Malformed(f"ACL bootstrap already done (reset index: {done})")
        if not _UUID.fullmatch(secret):
            raise Malformed("invalid acl token")
        tx.touch(_DONE)
        return tokens.add(tx, token, secret)

    return IssuedToken(secret, await store.write(write))


def bootstrap_index(db: ReadSnapshot) -> int:
    """Return the index of the last bootstrap; 0 if there was none."""
    return db.table_index(_DONE)


def read_reset_index(directory: Path) -> int:
    """Return the index in the administrator's reset file; 0 if there is no valid file."""
    try:
        text = (directory / RESET_FILE).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return 0
    return parse_integer(text) if text.isdecimal() else 0


async def bootstrap_on_first_start(
    store: Store, tokens: TokenStore, directory: Path, *, secret: str, accessor: str, now: int
) -> Path | None:
    """Create the first token of a new store, and return the file that contains its secret.

    Return None if the store is not new. The file is written before the token is stored. A crash in
    between leaves a file with a useless secret, and the next start creates another secret.
    """
    if store.read(bootstrap_index) or store.read(rows.list_all):
        return None
    path = directory / SECRET_FILE
    _write_secret(path, secret)
    await bootstrap(store, tokens, secret=secret, accessor=accessor, now=now, reset_index=0)
    return path


def _write_secret(path: Path, secret: str) -> None:
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(file, "w") as opened:
        opened.write(f"{secret}\n")
        opened.flush()
        os.fsync(opened.fileno())
