"""Who reads an answer that has no end, looked at again while he reads."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import trio

from daemon.acl.grant import Grant
from daemon.web.request import Request
from storage.errors import UnknownToken

RECHECK = 1.0  # seconds for which a reader's rights are taken as they were


class Reader:
    """Who reads, and what he may see."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.grant: Grant = request.caller.grant
        # One of whose token's uses this is the last is still who he was when he came.
        self._stays = request.operator is not None or request.caller.token.uses_left is not None
        self._checked = trio.current_time()

    def is_known(self) -> bool:
        """Tell whether he may still read at all."""
        if self._stays or trio.current_time() < self._checked + RECHECK:
            return True
        self._checked = trio.current_time()
        tokens, request = self._request.parts.tokens, self._request
        try:
            self.grant = tokens.resolve(request.token, request.address).grant
        except UnknownToken:
            return False
        return True


async def while_known(
    request: Request, pieces: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of an answer until its reader's token has ended."""
    reader = Reader(request)
    async with aclosing(pieces):
        async for piece in pieces:
            if not reader.is_known():
                return
            yield piece
