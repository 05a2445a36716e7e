"""Fair shares of CPU time: a client that exceeds its share waits while others send requests.

A client is a token, or else a user of this host or an address. The cost of a request is CPU time of
the event loop and of its threads, not the number of requests. Each client may use `ALLOWED` seconds
of CPU time in advance. Its account regains a fixed percentage of the time that passes. A client
that has used more gets 429 while others send requests. If no others do, it is never rejected.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from math import ceil

import msgspec
import trio

from daemon.acl.builtin import NOBODY, UNASKED
from storage.account import RequestCost, charged_to, counted, present
from storage.errors import TooOften

ALLOWED = 5.0  # seconds of CPU time that a client may use in advance
OTHERS = 10.0  # seconds after a request during which its client counts as active
_LONGEST_WAIT = 60  # seconds
_MOST = 10_000  # clients; the least recently seen one is dropped
_NAMELESS = frozenset({NOBODY.accessor, UNASKED.accessor, ""})
_NANO = 1e-9


class _Spending(msgspec.Struct):
    """The CPU time that a client has used beyond its share; `at` is in Trio time."""

    seconds: float = 0.0
    at: float = 0.0


class RequestAccount(RequestCost):
    """The account of one request, with its client."""

    def __init__(self, fairness: "Fairness", client: str) -> None:
        super().__init__()
        self._fairness, self.client = fairness, client
        self._settled = 0

    def settle(self) -> None:
        """Charge the client for the CPU time since the last call."""
        spent, self._settled = self.spent - self._settled, self.spent
        self._fairness.spend(self.client, spent * _NANO)


class Fairness:
    """The recent CPU time of clients."""

    def __init__(self, percent: int) -> None:
        """Each client regains `percent` % of a second of CPU time per second; 0 means no limit."""
        self._regained = percent / 100
        self._clients: OrderedDict[str, _Spending] = OrderedDict()

    def spend(self, client: str, seconds: float) -> None:
        """Charge a client for CPU time in seconds."""
        now = trio.current_time()
        spending = self._clients.setdefault(client, _Spending(at=now))
        left = spending.seconds - (now - spending.at) * self._regained
        spending.seconds, spending.at = max(left, 0.0) + seconds, now
        self._clients.move_to_end(client)
        if len(self._clients) > _MOST:
            self._clients.popitem(last=False)

    def check(self, client: str) -> None:
        """Raise `TooOften` if a client exceeds its share and other clients are active."""
        if not (self._regained and client):
            return
        self.spend(client, 0.0)
        beyond = self._clients[client].seconds - ALLOWED
        if beyond > 0 and self._others_wait(client):
            wait = min(ceil(beyond / self._regained), _LONGEST_WAIT)
            raise TooOften(
                f"{client} has used more than its share of CPU time (client_cpu_percent): "
                f"wait {wait} s before the next request, or send smaller requests",
                retry_after=wait,
            )

    def _others_wait(self, client: str) -> bool:
        last = next((name for name in reversed(self._clients) if name != client), None)
        return last is not None and trio.current_time() - self._clients[last].at < OTHERS


def identify(accessor: str) -> None:
    """Set the token of the current request. Raises `TooOften`."""
    account = present()
    if isinstance(account, RequestAccount):
        if account.client and accessor not in _NAMELESS:
            account.client = f"token {accessor}"
        account._fairness.check(account.client)  # noqa: SLF001  # the class is in this module


def charge() -> None:
    """Charge the client of the current request for its CPU time so far."""
    account = present()
    if isinstance(account, RequestAccount):
        account.settle()


async def counting(
    account: RequestAccount, chunks: AsyncIterator[bytes]
) -> AsyncGenerator[bytes, None]:
    """Yield the same chunks, and charge an account for each of them."""
    try:
        while True:
            with charged_to(account):
                chunk = await counted(account, _next(chunks))
            account.settle()
            if chunk is None:
                return
            yield chunk
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    with suppress(StopAsyncIteration):  # None marks the end
        return await anext(chunks)
    return None
