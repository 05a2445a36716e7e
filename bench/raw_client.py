"""A client for measurements that sends the same request repeatedly on raw sockets.

An HTTP library in Python takes one to two milliseconds per request, which is more than the measured
server needs.
"""

import os
import selectors
import socket
import time
from contextlib import ExitStack


def exchange(port: int, request: bytes, clients: int, seconds: float) -> list[float]:
    """Send the same request repeatedly from `clients` concurrent clients, for `seconds`.

    Each client waits for a response before it sends the next request.

    Return the latency of each response in seconds. Raises `AssertionError` for a status other than
    200.
    """
    took, came, since = list[float](), dict[int, bytes](), dict[int, float]()
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for _ in range(clients):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            selector.register(one, selectors.EVENT_READ)
            since[one.fileno()] = time.perf_counter()
            one.sendall(request)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for key, _ in selector.select(seconds):
                answer = came.pop(key.fd, b"") + os.read(key.fd, 65536)
                if not is_whole(answer):
                    came[key.fd] = answer
                    continue
                assert answer.startswith(b"HTTP/1.1 200 "), answer
                now = time.perf_counter()
                took.append(now - since[key.fd])
                since[key.fd] = now
                os.write(key.fd, request)
    return took


def is_whole(data: bytes) -> bool:
    """Return whether these bytes are a complete response."""
    head, end, body = data.partition(b"\r\n\r\n")
    length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return bool(end) and len(body) >= int(length)
