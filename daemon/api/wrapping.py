"""Answers that are wrapped in a token: look at one, take it out, wrap it anew (golden: wrapping)."""

import msgspec

from daemon.acl import wrapping
from daemon.web.envelope import Answer
from daemon.web.request import Call
from storage.errors import Malformed
from storage.records.base import SECOND
from storage.records.times import rfc3339


def _secret(call: Call) -> str:
    """Return the secret of the wrapping token: of the body, else the one that the request shows."""
    secret = call.fields.text("token") or call.token
    if not secret:
        raise Malformed('missing "token" value in input')
    return secret


async def wrap(call: Call) -> Answer:
    """Have what the request says wrapped, as the header for it asks."""
    if not call.wrap_ttl:
        raise Malformed("endpoint requires response wrapping to be used")
    return Answer(data=call.fields.values)


async def unwrap(call: Call) -> Answer:
    """Return a wrapped answer, once."""
    found = await wrapping.unwrap(call.parts.store, call.parts.tokens, _secret(call))
    return msgspec.json.decode(found.answer, type=Answer)


async def lookup(call: Call) -> Answer:
    """Describe a wrapped answer without taking it."""
    secret, parts = _secret(call), call.parts
    found = parts.store.read(lambda db: wrapping.look(db, parts.tokens, secret))
    return Answer(
        data={
            "creation_path": found.path,
            "creation_time": rfc3339(found.token.created_at),
            "creation_ttl": found.token.ttl // SECOND,
        }
    )


async def rewrap(call: Call) -> Answer:
    """Wrap an answer in another token; the old one ends."""
    parts = call.parts
    found = await wrapping.unwrap(parts.store, parts.tokens, _secret(call))
    again = await wrapping.wrap(
        parts.store,
        parts.tokens,
        found.answer,
        found.path,
        ttl=found.token.ttl // SECOND,
        now=parts.clock.now(),
    )
    return Answer(wrap_info=wrapping.info(again))
