"""Send a session to two servers, and compare their responses.

A server chooses the time of its work after a write. So a read that differs is repeated, until the
responses are equal or `PATIENCE` seconds have passed.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import httpx

from tests.differential.responses import Difference, Response, differences
from tests.differential.sessions import Request

PATIENCE = 5  # seconds
PAUSE = 0.1  # seconds between polls, because the other server may offer no event to wait for


def ask(server: httpx.Client, request: Request) -> Response:
    """Return the response of a server."""
    answer = server.request(
        request.method, request.path, params=dict(request.query), json=request.body
    )
    with suppress(ValueError):  # the body is plain text
        return Response(answer.status_code, answer.json())
    return Response(answer.status_code, answer.text)


def settle(server: httpx.Client) -> None:
    """Wait until the server has decided every evaluation, at most `PATIENCE` seconds."""
    deadline = time.monotonic() + PATIENCE
    query = {"namespace": "*", "filter": 'Status == "pending"'}
    while server.get("/v1/evaluations", params=query).json() and time.monotonic() < deadline:
        time.sleep(PAUSE)


def compare(
    first: httpx.Client, second: httpx.Client, requests: Iterable[Request]
) -> Iterator[Difference]:
    """Yield the differences between the responses of two servers to one session."""
    servers = first, second
    for request in requests:
        deadline = time.monotonic() + PATIENCE
        found = _differences(servers, request)
        while found and not request.is_write and time.monotonic() < deadline:
            time.sleep(PAUSE)
            found = _differences(servers, request)
        if request.is_write:
            for server in servers:
                settle(server)
        yield from found


def _differences(servers: tuple[httpx.Client, httpx.Client], request: Request) -> list[Difference]:
    one, two = (ask(server, request) for server in servers)
    return [*differences(request.method, request.path, one, two)]
