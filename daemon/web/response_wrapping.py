"""Response wrapping: responses stored for the holder of a wrapping token."""

from collections.abc import Mapping

import msgspec

from daemon.acl import response_wrapping
from daemon.web.request import RouteCall
from daemon.web.vault_envelope import VaultBody


async def wrap(call: RouteCall, answer: VaultBody) -> VaultBody:
    """Store the response to a call, and return the response with the wrapping token."""
    parts = call.parts
    wrapped = await response_wrapping.wrap_response(
        parts.store,
        parts.tokens,
        msgspec.json.encode(answer),
        call.name,
        ttl=call.wrap_ttl,
        now=parts.clock.now(),
    )
    return VaultBody(wrap_info=response_wrapping.wrap_info(wrapped, _accessor(answer)))


def _accessor(answer: VaultBody) -> str:
    """Return the accessor of the token in a response, if there is one."""
    return str(answer.auth.get("accessor", "")) if isinstance(answer.auth, Mapping) else ""
