"""Response wrapping: responses stored for the holder of a wrapping token."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec

from daemon.acl import response_wrapping
from daemon.web.request import RouteCall
from daemon.web.vault_envelope import VaultBody
from storage.errors import Malformed
from storage.records.codec import encode

MOST = 1024 * 1024  # bytes of a wrapped response; also Vault's limit, for an entry of its storage


async def wrap(call: RouteCall, answer: VaultBody) -> VaultBody:
    """Store the response to a call, and return the response with the wrapping token.

    Raises `Malformed` if the response is too long.
    """
    parts = call.parts
    wrapped = await response_wrapping.wrap_response(
        parts.store,
        parts.tokens,
        await _text(call, answer),
        call.name,
        ttl=call.wrap_ttl,
        now=parts.clock.now(),
    )
    return VaultBody(wrap_info=response_wrapping.wrap_info(wrapped, _accessor(answer)))


async def _text(call: RouteCall, answer: VaultBody) -> bytes:
    """Return a response as JSON. Raises `Malformed` if it is too long."""
    if answer.members is not None:
        data = msgspec.Raw(b"{%b}" % await _whole(answer.members))
        answer = msgspec.structs.replace(answer, members=None)
        return encode({**msgspec.structs.asdict(answer), "data": data})
    if call.is_long:
        text = await call.parts.admission.run(call.client, lambda: encode(answer))
    else:
        text = encode(answer)
    if len(text) > MOST:
        raise _too_long()
    return text


async def _whole(members: AsyncGenerator[bytes, None]) -> bytes:
    read, size = list[bytes](), 0
    async with aclosing(members):
        async for chunk in members:
            read.append(chunk)
            size += len(chunk)
            if size > MOST:
                raise _too_long()
    return b"".join(read)


def _too_long() -> Malformed:
    return Malformed(
        f"the response is longer than {MOST} bytes, the limit for X-Vault-Wrap-TTL: request a "
        "smaller part of a list with limit and after, or no wrapping"
    )


def _accessor(answer: VaultBody) -> str:
    """Return the accessor of the token in a response, if there is one."""
    return str(answer.auth.get("accessor", "")) if isinstance(answer.auth, Mapping) else ""
