"""Suggestions for unknown names: "did you mean", at a limited cost.

The comparison of two names takes time in proportion to the product of their lengths. Names come
from clients. So each search compares a limited number of characters, and each request gets a
limited number of searches.
"""

import difflib
from collections.abc import Iterable

from daemon.text.go_format import quote

_SEARCHES = 3  # searches that one request may make
_LONGEST = 64  # characters of a name; a longer name gets no suggestion
_MOST_PAIRS = 60_000  # product of lengths over all comparisons of one search: at most about 8 ms


def closest(name: str, candidates: Iterable[str]) -> str:
    """Return the known name that is most similar to `name`; empty if none is similar.

    If there are many known names, only those at the beginning of `candidates` are compared.
    """
    if len(name) > _LONGEST:
        return ""
    left, compared = _MOST_PAIRS // max(len(name), 1), []
    for candidate in candidates:
        left -= len(candidate)
        if left < 0:
            break
        compared.append(candidate)
    matches = difflib.get_close_matches(name, compared, n=1)
    return matches[0] if matches else ""


class Hints:
    """Suggestions for the first few unknown names of a request."""

    def __init__(self) -> None:
        self._left = _SEARCHES

    def of(self, name: str, candidates: Iterable[str]) -> str:
        """Return `; did you mean "NAME"?` with the most similar known name, or an empty string."""
        similar = self.closest(name, candidates)
        return f"; did you mean {quote(similar)}?" if similar else ""

    def closest(self, name: str, candidates: Iterable[str]) -> str:
        """Return the most similar known name, or an empty string if none is similar.

        After the request has used all its searches, the result is always empty.
        """
        self._left -= 1
        return closest(name, candidates) if self._left >= 0 else ""
