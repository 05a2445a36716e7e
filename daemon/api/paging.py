"""Pages of a listing: `per_page`, `next_token` and `reverse`, as the peer's clients use them.

A token names the first element of the next page. A token without `per_page` gives all the rest,
one beyond the end gives nothing, a negative `per_page` gives no element and a token
(golden: list-jobs, evaluations-allocations).
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from daemon.web.parameters import Query
from storage.records.numbers import whole

T = TypeVar("T")
Key = tuple[str | int, str]


class Page(msgspec.Struct, frozen=True):
    """The elements of one page, and the token of the next one."""

    lines: list[bytes]
    next_token: str = ""

    @property
    def body(self) -> bytes:
        """Return the page as a JSON list."""
        return b"[" + b",".join(self.lines) + b"]"


def paginate(
    items: Sequence[T],
    key: Callable[[T], Key],
    line: Callable[[T], bytes],
    query: Query,
    *,
    newest_first: bool = False,
) -> Page:
    """Return the page of `items`, which are sorted by `key`, that the query asks for.

    `newest_first`: the order without `reverse` is from the last to the first. `line` makes the JSON of one item and is called only for what is on the page.
    """
    asked = query.text("reverse") in ("true", "1", "t", "T", "TRUE", "True")
    reverse = asked != newest_first
    ordered = list(reversed(items)) if reverse else list(items)
    if token := query.text("next_token"):
        first = _parse(token, ordered, key)
        ordered = [
            item for item in ordered if (key(item) <= first if reverse else key(item) >= first)
        ]
    per_page = int(query.text("per_page") or 0)
    count = len(ordered) if not per_page else max(per_page, 0)
    more = ordered[count : count + 1]
    next_token = ".".join(str(part) for part in key(more[0])) if more else ""
    return Page([line(item) for item in ordered[:count]], next_token)


def _parse(token: str, items: Sequence[T], key: Callable[[T], Key]) -> Key:
    """Return a token in the form of the keys; a number that is none sorts before all others."""
    head, _, tail = token.partition(".")
    if items and isinstance(key(items[0])[0], int):
        return (whole(head) if head.isdecimal() else -1, tail)
    return (head, tail)
