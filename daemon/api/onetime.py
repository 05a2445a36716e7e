"""One-time tokens of the jobs side: made by who shows a token, exchanged for it by whom he tells."""

from daemon.acl import onetime
from daemon.api.acl import written_token
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import Denied, Malformed
from storage.records.base import Record
from storage.records.times import rfc3339


class OneTimeToken(Record, frozen=True, kw_only=True):
    """A secret that can be exchanged once, and until when; the accessor is that of its token."""

    one_time_secret_id: str
    accessor_id: str
    expires_at: str
    create_index: int
    modify_index: int


class OneTimeTokenResponse(Record, frozen=True, kw_only=True):
    """The answer to who makes one."""

    one_time_token: OneTimeToken


class OneTimeTokenExchangeRequest(Record, frozen=True, kw_only=True):
    """The body of an exchange."""

    one_time_secret_id: str = ""


async def make(request: Request) -> Reply:
    """Make a secret that can be exchanged once for the token that the request shows."""
    parts, token = request.parts, request.caller.token
    if not parts.tokens.asks or not request.token:
        raise Malformed("a one-time token is made of a token: show one")
    one_time, now = next(parts.ids), parts.clock.now()
    made = await onetime.make(
        parts.store, parts.tokens, token, request.token, one_time=one_time, now=now
    )
    shown = OneTimeToken(
        one_time_secret_id=one_time,
        accessor_id=token.accessor,
        expires_at=rfc3339(made.expires_at or now),
        create_index=made.create_index,
        modify_index=made.modify_index,
    )
    return Reply(body=OneTimeTokenResponse(one_time_token=shown), index=made.create_index)


async def exchange(request: Request) -> Reply:
    """Give the token of a one-time secret, once."""
    parts = request.parts
    body = await request.decoded(OneTimeTokenExchangeRequest)
    try:
        found = await onetime.exchange(parts.store, parts.tokens, body.one_time_secret_id)
    except Denied:
        parts.tokens.note_failure(request.address)
        raise
    return written_token(parts.store, found)
