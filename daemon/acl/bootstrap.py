"""The first token of all: who makes it, and when it may be made again.

Outside development the daemon makes it itself at its first start and leaves the secret in a file
for its own user alone, so that there is no moment at which whoever comes first gets everything.
Whoever can write into the data directory may have it made again: the file named below must hold
the index that the refusal tells.
"""

import os
import re
from pathlib import Path

from daemon.acl.tokens import Issued, Tokens
from storage.errors import Malformed
from storage.queries import tokens as rows
from storage.readers import Snapshot
from storage.records.acl import ROOT, Token
from storage.records.numbers import whole
from storage.store import Store
from storage.writer import Transaction

SECRET_FILE = "bootstrap-token"  # noqa: S105  # its name; in the directory of the store
RESET_FILE = "acl-bootstrap-reset"
_DONE = "acl_bootstrap"  # the table whose index tells when it was done last
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


async def bootstrap(
    store: Store, tokens: Tokens, *, secret: str, accessor: str, now: int, reset_index: int
) -> Issued:
    """Make the first management token, with this secret. Raises `Malformed` when there was one.

    `reset_index` is what an administrator has written to have it made again; 0: nothing.
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
        done = done_at(tx)
        if done and done != reset_index:
            raise Malformed(f"ACL bootstrap already done (reset index: {done})")
        if not _UUID.fullmatch(secret):
            raise Malformed("invalid acl token")
        tx.touch(_DONE)
        return tokens.add(tx, token, secret)

    return Issued(secret, await store.write(write))


def done_at(db: Snapshot) -> int:
    """Return the index at which it was done last; 0: never."""
    return db.table_index(_DONE)


def read_reset(directory: Path) -> int:
    """Return the index that an administrator has written to have the first token made again."""
    try:
        text = (directory / RESET_FILE).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return 0
    return whole(text) if text.isdecimal() else 0


async def first_start(
    store: Store, tokens: Tokens, directory: Path, *, secret: str, accessor: str, now: int
) -> Path | None:
    """Make the first token of a new store, and return the file that holds its secret.

    The file is written first: a crash between the two leaves a secret of no use, and the next
    start makes another.
    """
    if store.read(done_at) or store.read(rows.every):
        return None
    path = directory / SECRET_FILE
    _keep(path, secret)
    await bootstrap(store, tokens, secret=secret, accessor=accessor, now=now, reset_index=0)
    return path


def _keep(path: Path, secret: str) -> None:
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(file, "w") as opened:
        opened.write(f"{secret}\n")
        opened.flush()
        os.fsync(opened.fileno())
