"""Access checks for readers of long responses, repeated while they read."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import trio

from daemon.acl.check import Caller, Requirement
from daemon.web.request import Request
from storage.errors import UnknownToken
from storage.records.acl import SPENT

RECHECK = 1.0  # seconds for which an access check stays valid


class StreamSubscriber:
    """The reader of a response, with its current rights, which may change while it reads."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.caller: Caller = request.caller
        self._checked = trio.current_time()

    async def is_allowed(self) -> bool:
        """Return whether the reader's token is still valid, and still has the rights it needs."""
        if trio.current_time() < self._checked + RECHECK:
            return True
        self._checked = trio.current_time()
        try:
            self.caller = await self._now()
        except UnknownToken:
            return False
        return self._request.still_passes(self.caller)

    async def _now(self) -> Caller:
        """Return the caller with its present rights. Raises `UnknownToken`."""
        request, tokens = self._request, self._request.parts.tokens
        is_open = request.needs.asks is Requirement.NOTHING  # the route is open to any token
        if is_open or (request.operator is not None and not request.token):
            return request.caller
        if request.caller.token.uses_left == SPENT:
            # The token's last use was this request, so it is no longer stored. It stays valid for
            # the request.
            return await tokens.identify_again(request.caller.token)
        return await tokens.identify(request.token, request.address)


async def while_authorized(
    request: Request, chunks: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a stream until its reader loses its token or the required capabilities."""
    reader = StreamSubscriber(request)
    async with aclosing(chunks):
        async for chunk in chunks:
            if not await reader.is_allowed():
                return
            yield chunk
