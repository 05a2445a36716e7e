"""Answers that are to be wrapped: kept for whoever holds the token that is given out instead."""

from collections.abc import Mapping

import msgspec

from daemon.acl import wrapping
from daemon.web.envelope import Answer
from daemon.web.request import Call


async def wrap(call: Call, answer: Answer) -> Answer:
    """Keep the answer to a call, and return what the caller is told instead."""
    parts = call.parts
    wrapped = await wrapping.wrap(
        parts.store,
        parts.tokens,
        msgspec.json.encode(answer),
        call.name,
        ttl=call.wrap_ttl,
        now=parts.clock.now(),
    )
    return Answer(wrap_info=wrapping.info(wrapped, _accessor(answer)))


def _accessor(answer: Answer) -> str:
    """Return the accessor of the token in an answer, if there is one."""
    return str(answer.auth.get("accessor", "")) if isinstance(answer.auth, Mapping) else ""
