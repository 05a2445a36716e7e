"""A client that costs little beside the server it measures: the same request over and over, on bare sockets.

An HTTP library in Python takes one to two milliseconds for a request, more than what it would measure.
"""

import os
import selectors
import socket
import time
from contextlib import ExitStack


def exchange(port: int, request: bytes, clients: int, seconds: float) -> list[float]:
    """Let each of so many clients send a request when it has the answer to the one before.

    Returns how many seconds each answer took. Raises `AssertionError` for one that is not 200.
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
    """Tell whether these bytes are an answer to its end."""
    head, end, body = data.partition(b"\r\n\r\n")
    length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return bool(end) and len(body) >= int(length)
