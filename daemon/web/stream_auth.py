"""Access checks for readers of endless streams, repeated while they read."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import trio

from daemon.acl.grant import CapabilitySet
from daemon.web.request import Request
from storage.errors import UnknownToken

RECHECK = 1.0  # seconds for which an access check stays valid


class StreamSubscriber:
    """The reader of a stream, and the objects that it may see."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.grant: CapabilitySet = request.caller.grant
        # A token whose last use was this request has no uses left, but stays valid for it.
        self._stays = request.operator is not None or request.caller.token.uses_left is not None
        self._checked = trio.current_time()

    def is_known(self) -> bool:
        """Return whether the reader's token is still valid."""
        if self._stays or trio.current_time() < self._checked + RECHECK:
            return True
        self._checked = trio.current_time()
        tokens, request = self._request.parts.tokens, self._request
        try:
            self.grant = tokens.resolve(request.token, request.address).grant
        except UnknownToken:
            return False
        return True


async def while_authorized(
    request: Request, pieces: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a stream until its reader's token expires or is revoked."""
    reader = StreamSubscriber(request)
    async with aclosing(pieces):
        async for piece in pieces:
            if not reader.is_known():
                return
            yield piece
