"""Reason phrases: HTTP/1.1 allows an empty one, but clients of the peers compare the text."""

from functools import cache
from http import HTTPStatus

# Newer versions of Python name these after RFC 9110; the peers keep the older words.
_OLDER = {
    413: "Request Entity Too Large",
    416: "Requested Range Not Satisfiable",
    422: "Unprocessable Entity",
}


@cache
def reason(status: int) -> str:
    """Return the reason phrase of a status, as the peers write it."""
    if phrase := _OLDER.get(status):
        return phrase
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"status code {status}"
