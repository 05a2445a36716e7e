"""The trusted certificates of HTTP clients, read once.

By default each client of httpx reads them again: 40 ms, which is more than most tests need.
"""

import ssl
from functools import cache

import httpx


@cache
def trusted() -> ssl.SSLContext:
    """Return the context of all clients that need no other certificates."""
    return httpx.create_ssl_context()
