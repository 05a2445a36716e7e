"""Reason phrases of HTTP/1.1. They may be empty, but clients of Nomad and Vault compare them."""

from functools import cache
from http import HTTPStatus

# Newer versions of Python use the names of RFC 9110; Nomad and Vault keep the older ones.
_OLDER = {
    413: "Request Entity Too Large",
    416: "Requested Range Not Satisfiable",
    422: "Unprocessable Entity",
}


@cache
def reason(status: int) -> str:
    """Return the reason phrase of a status, as in Nomad and Vault."""
    if phrase := _OLDER.get(status):
        return phrase
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"status code {status}"
