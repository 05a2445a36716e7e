"""Response wrapping: stored responses. A wrapping token can be exchanged once for its response.

The response is encrypted with a key derived from the token's secret. The daemon does not store the
secret, so it cannot read the response without the token. A caller that finds the token already used
knows that another party has read the response.
"""

import hashlib

import msgspec

from daemon.acl.keyring import new_accessor, new_secret
from daemon.acl.seal import EnvelopeCipher
from daemon.acl.tokens import TokenStore
from storage.errors import Malformed
from storage.queries import tokens
from storage.read_pool import ReadSnapshot
from storage.records.acl import WRAPPING, Token
from storage.records.base import SECOND
from storage.records.times import rfc3339
from storage.store import Store
from storage.writer import Transaction

ONE_TIME = "acl/token/onetime"  # the path of tokens that only `one_time_tokens.py` may unwrap


class WrappedResponse(msgspec.Struct, frozen=True):
    """A stored response: the secret that unwraps it, its token, and the content."""

    secret: str
    token: Token
    path: str
    answer: bytes


def _seal(secret: str) -> EnvelopeCipher:
    return EnvelopeCipher(
        {1: hashlib.blake2b(secret.encode(), digest_size=32, person=b"wrapping").digest()}
    )


async def wrap_response(
    store: Store,
    tokens_: TokenStore,
    answer: bytes,
    path: str,
    *,
    ttl: int,
    now: int,
    secret: str = "",
    parent: str = "",
) -> WrappedResponse:
    """Store a response for `ttl` seconds, or until the token `parent` ends."""
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

    return WrappedResponse(secret, await store.write(write), path, answer)


async def unwrap_response(
    store: Store, tokens_: TokenStore, secret: str, *, one_time: bool = False
) -> WrappedResponse:
    """Return a stored response and delete it. Raises `Malformed` if it does not exist.

    `one_time` selects the responses of one-time tokens, which other callers cannot unwrap.
    """

    def write(tx: Transaction) -> WrappedResponse:
        wrapped = _find(tx, tokens_, secret, one_time=one_time)
        tokens.remove(tx, wrapped.token.accessor)
        return wrapped

    return await store.write(write)


def lookup_wrapped(db: ReadSnapshot, tokens_: TokenStore, secret: str) -> WrappedResponse:
    """Return a stored response without unwrapping it. Raises `Malformed` if it does not exist."""
    return _find(db, tokens_, secret)


def _find(
    db: ReadSnapshot, tokens_: TokenStore, secret: str, *, one_time: bool = False
) -> WrappedResponse:
    token = tokens_.find(db, secret)
    wrapped = tokens.wrapped(db, token.accessor) if token else None
    if token is None or wrapped is None or (wrapped[0] == ONE_TIME) is not one_time:
        raise Malformed("wrapping token is not valid or does not exist")
    path, sealed = wrapped
    return WrappedResponse(secret, token, path, _seal(secret).unseal(sealed, token.accessor))


def wrap_info(wrapped: WrappedResponse, accessor: str = "") -> dict[str, object]:
    """Return the response that replaces a wrapped response.

    `accessor` is the accessor of a token in the wrapped response; empty if it has no token.
    """
    document: dict[str, object] = {
        "token": wrapped.secret,
        "accessor": wrapped.token.accessor,
        "ttl": wrapped.token.ttl // SECOND,
        "creation_time": rfc3339(wrapped.token.created_at),
        "creation_path": wrapped.path,
    }
    return {**document, "wrapped_accessor": accessor} if accessor else document
