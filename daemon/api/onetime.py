"""One-time tokens of the jobs API: another client can exchange them for the token of their creator."""

from daemon.acl import one_time_tokens
from daemon.api.acl import token_response
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Denied, Malformed
from storage.records.base import Record
from storage.records.times import rfc3339


class OneTimeToken(Record, frozen=True, kw_only=True):
    """A one-time secret, its expiry time, and the accessor of the token that it represents."""

    one_time_secret_id: str
    accessor_id: str
    expires_at: str
    create_index: int
    modify_index: int


class OneTimeTokenResponse(Record, frozen=True, kw_only=True):
    """The response with a new one-time token."""

    one_time_token: OneTimeToken


class OneTimeTokenExchangeRequest(Record, frozen=True, kw_only=True):
    """The body of an exchange."""

    one_time_secret_id: str = ""


async def create_one_time_token(request: Request) -> HandlerReply:
    """Create a one-time token for the token of the request."""
    parts, token = request.parts, request.caller.token
    if not parts.tokens.asks or not request.token:
        raise Malformed(
            "a one-time token represents an existing token: send that token with the request"
        )
    one_time, now = next(parts.ids), parts.clock.now()
    stored_token = await one_time_tokens.create_one_time_token(
        parts.store, parts.tokens, token, request.token, one_time=one_time, now=now
    )
    one_time_token = OneTimeToken(
        one_time_secret_id=one_time,
        accessor_id=token.accessor,
        expires_at=rfc3339(stored_token.expires_at or now),
        create_index=stored_token.create_index,
        modify_index=stored_token.modify_index,
    )
    return HandlerReply(
        body=OneTimeTokenResponse(one_time_token=one_time_token), index=stored_token.create_index
    )


async def exchange(request: Request) -> HandlerReply:
    """Exchange a one-time token for the token that it represents. This works only once."""
    parts = request.parts
    body = await request.decoded(OneTimeTokenExchangeRequest)
    try:
        issued_token = await one_time_tokens.exchange_one_time_token(
            parts.store, parts.tokens, body.one_time_secret_id
        )
    except Denied:
        parts.tokens.record_failure(request.client_key)
        raise
    return token_response(parts.store, issued_token)
