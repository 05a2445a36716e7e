"""The trusted certificates of HTTP clients, read once.

By default, each client of httpx reads the certificates again. This takes 40 ms, longer than most
tests.
"""

import ssl
from functools import cache

import httpx


@cache
def trusted() -> ssl.SSLContext:
    """Return the context of all clients that need no other certificates."""
    return httpx.create_ssl_context()
