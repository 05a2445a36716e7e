"""Tokens handed over by a secret that works once: from a terminal to a browser, for example.

Secrets of tokens are not kept, so the one that is to be handed over waits sealed with a key that
only the one-time secret gives, as answers do that are wrapped. It ends with its token.
"""

from daemon.acl import wrapping
from daemon.acl.tokens import Issued, Tokens
from storage.errors import Denied, Malformed
from storage.records.acl import Token
from storage.records.base import MINUTE, SECOND
from storage.store import Store

LIFE = 10 * MINUTE


async def make(
    store: Store, tokens: Tokens, token: Token, secret: str, *, one_time: str, now: int
) -> Token:
    """Let the secret of a token be had once by who shows `one_time`; return what ends when."""
    wrapped = await wrapping.wrap(
        store,
        tokens,
        secret.encode(),
        wrapping.ONE_TIME,
        ttl=LIFE // SECOND,
        now=now,
        secret=one_time,
        parent=token.accessor,
    )
    return wrapped.token


async def exchange(store: Store, tokens: Tokens, one_time: str) -> Issued:
    """Return the token that waits, with its secret, and forget it. Raises `Denied`."""
    try:
        found = await wrapping.unwrap(store, tokens, one_time, one_time=True)
    except Malformed:
        raise Denied from None
    secret = found.answer.decode()
    token = store.read(lambda db: tokens.find(db, secret))
    if token is None:  # it has ended in between
        raise Denied
    return Issued(secret, token)
