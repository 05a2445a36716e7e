"""One-time tokens: a secret that another client can exchange once for a token.

The link that `steward ui` prints signs a browser in with such a token. Secrets of tokens are not
stored in plain text. So the token's secret is encrypted with a key derived from the one-time
secret, like a wrapped response. The one-time token ends when the token behind it ends.
"""

from daemon.acl import response_wrapping
from daemon.acl.tokens import IssuedToken, TokenStore
from storage.errors import Denied, Malformed
from storage.records.acl import Token
from storage.records.base import MINUTE, SECOND
from storage.store import Store

LIFE = 10 * MINUTE


async def create_one_time_token(
    store: Store, tokens: TokenStore, token: Token, secret: str, *, one_time: str, now: int
) -> Token:
    """Store a token's secret until `one_time` is exchanged for it; return the one-time token."""
    wrapped = await response_wrapping.wrap_response(
        store,
        tokens,
        secret.encode(),
        response_wrapping.ONE_TIME,
        ttl=LIFE // SECOND,
        now=now,
        secret=one_time,
        parent=token.accessor,
    )
    return wrapped.token


async def exchange_one_time_token(store: Store, tokens: TokenStore, one_time: str) -> IssuedToken:
    """Return the token behind a one-time token, with its secret; delete the one-time token.

    Raises `Denied`.
    """
    try:
        wrapped_response = await response_wrapping.unwrap_response(
            store, tokens, one_time, one_time=True
        )
    except Malformed:
        raise Denied from None
    secret = wrapped_response.answer.decode()
    token = store.read(lambda db: tokens.find(db, secret))
    if token is None:  # the token expired in between
        raise Denied
    return IssuedToken(secret, token)
