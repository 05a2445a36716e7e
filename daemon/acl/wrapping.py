"""Answers that wait for who is to have them: wrapped in a token that can be used once.

The answer is sealed with a key that only the token's secret gives. So neither the file, nor the
daemon after it has forgotten the secret, can show it; and whoever finds that the token has been
used already knows that somebody else has seen the answer.
"""

import hashlib

import msgspec

from daemon.acl.keyring import new_accessor, new_secret
from daemon.acl.seal import Seal
from daemon.acl.tokens import Tokens
from storage.errors import Malformed
from storage.queries import tokens
from storage.readers import Snapshot
from storage.records.acl import WRAPPING, Token
from storage.records.base import SECOND
from storage.records.times import rfc3339
from storage.store import Store
from storage.writer import Transaction

ONE_TIME = "acl/token/onetime"  # the path of what only `onetime.py` may unwrap


class Wrapped(msgspec.Struct, frozen=True):
    """An answer that waits: the secret that unwraps it, its token, and what it answers."""

    secret: str
    token: Token
    path: str
    answer: bytes


def _seal(secret: str) -> Seal:
    return Seal({1: hashlib.blake2b(secret.encode(), digest_size=32, person=b"wrapping").digest()})


async def wrap(
    store: Store,
    tokens_: Tokens,
    answer: bytes,
    path: str,
    *,
    ttl: int,
    now: int,
    secret: str = "",
    parent: str = "",
) -> Wrapped:
    """Keep the answer to a request for so many seconds, or until the token `parent` ends."""
    secret = secret or new_secret()
    token = Token(
        accessor=new_accessor(),
        policies=(WRAPPING,),
        path=path,
        parent=parent,
        ttl=ttl * SECOND,
        explicit_max_ttl=ttl * SECOND,
        created_at=now,
        expires_at=now + ttl * SECOND,
    )
    sealed = _seal(secret).seal(answer, token.accessor)

    def write(tx: Transaction) -> Token:
        stored = tokens_.add(tx, token, secret)
        tokens.wrap(tx, token.accessor, path, sealed)
        return stored

    return Wrapped(secret, await store.write(write), path, answer)


async def unwrap(store: Store, tokens_: Tokens, secret: str, *, one_time: bool = False) -> Wrapped:
    """Return an answer that waits, and forget it. Raises `Malformed` when there is none."""

    def write(tx: Transaction) -> Wrapped:
        found = _find(tx, tokens_, secret, one_time=one_time)
        tokens.remove(tx, found.token.accessor)
        return found

    return await store.write(write)


def look(db: Snapshot, tokens_: Tokens, secret: str) -> Wrapped:
    """Return an answer that waits, without taking it. Raises `Malformed` when there is none."""
    return _find(db, tokens_, secret)


def _find(db: Snapshot, tokens_: Tokens, secret: str, *, one_time: bool = False) -> Wrapped:
    token = tokens_.find(db, secret)
    kept = tokens.wrapped(db, token.accessor) if token else None
    if token is None or kept is None or (kept[0] == ONE_TIME) is not one_time:
        raise Malformed("wrapping token is not valid or does not exist")
    path, sealed = kept
    return Wrapped(secret, token, path, _seal(secret).unseal(sealed, token.accessor))


def info(wrapped: Wrapped, accessor: str = "") -> dict[str, object]:
    """Return what whoever asked is told instead of the answer; `accessor` is that of a token in it."""
    shown: dict[str, object] = {
        "token": wrapped.secret,
        "accessor": wrapped.token.accessor,
        "ttl": wrapped.token.ttl // SECOND,
        "creation_time": rfc3339(wrapped.token.created_at),
        "creation_path": wrapped.path,
    }
    return {**shown, "wrapped_accessor": accessor} if accessor else shown
