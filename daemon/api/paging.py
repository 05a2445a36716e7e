"""Pages of a listing: `per_page`, `next_token` and `reverse`, as the peer's clients use them.

A token names the first element of the next page. A token without `per_page` gives all the rest,
one beyond the end gives nothing, a negative `per_page` gives no element and a token
(golden: list-jobs, evaluations-allocations).

A listing that is kept in the store is read from its first element on, in steps that are bounded in
rows and bytes. Each step sees one moment; between two of them nothing is held, neither memory nor a
moment of the file, so that a reader may be as slow as it likes, or go away.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from daemon.jobspec.filter import Filter
from daemon.web import reply
from daemon.web.parameters import Query
from daemon.web.reply import Part, Reply, listed
from daemon.web.request import Request
from storage.queries.pages import Wish
from storage.readers import Snapshot
from storage.records.numbers import whole

T = TypeVar("T")
Key = tuple[str | int, ...]

STEP_BYTES = 512 * 1024  # of elements that a step makes
STEP_ROWS = 1000  # that a step looks at, whether they are wanted or not
_LARGEST = 2**63 - 1  # integer of the store


class Page(msgspec.Struct, frozen=True):
    """The elements of one page, and the token of the next one."""

    lines: list[bytes]
    next_token: str = ""

    @property
    def body(self) -> bytes:
        """Return the page as a JSON list."""
        return listed(self.lines)


def paginate(
    items: Sequence[T],
    key: Callable[[T], Key],
    line: Callable[[T], bytes],
    query: Query,
    *,
    newest_first: bool = False,
) -> Page:
    """Return the page of `items`, which are few and sorted by `key`, that the query asks for.

    `newest_first`: the order without `reverse` is from the last to the first. `line` makes the JSON of one item and is called only for what is on the page.
    """
    chosen, next_token = cut(items, key, query, newest_first=newest_first)
    return Page([line(item) for item in chosen], next_token)


def cut(
    items: Sequence[T], key: Callable[[T], Key], query: Query, *, newest_first: bool = False
) -> tuple[list[T], str]:
    """Return those of `items`, sorted by `key`, that are on the page, and the token of the next one."""
    reverse = _reversed(query) != newest_first
    ordered = list(reversed(items)) if reverse else list(items)
    if token := query.text("next_token"):
        is_number = bool(items) and isinstance(key(items[0])[0], int)
        first = _parse(token, is_number=is_number)
        ordered = [
            item for item in ordered if (key(item) <= first if reverse else key(item) >= first)
        ]
    per_page = int(query.text("per_page") or 0)
    count = len(ordered) if not per_page else max(per_page, 0)
    more = ordered[count : count + 1]
    return ordered[:count], _token(key(more[0])) if more else ""


def _reversed(query: Query) -> bool:
    return query.text("reverse") in ("true", "1", "t", "T", "TRUE", "True")


def _token(key: Key) -> str:
    return ".".join(map(str, key))


def _parse(token: str, *, is_number: bool) -> Key:
    """Return a token in the form of the keys; a number that is none sorts before all others."""
    head, _, tail = token.partition(".")
    if is_number:
        return (min(whole(head), _LARGEST) if head.isdecimal() else -1, tail)
    return (head, tail)


# ---- what is read step by step -------------------------------------------------------------------


class Listing(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A listing that can be read from any key on.

    `rows` yields the items in the order of their keys, or in the opposite one; `wanted` tells which
    are shown, `line` makes the JSON of one.
    """

    rows: Callable[[Snapshot, Key | None, bool], Iterable[T]]
    key: Callable[[T], Key]
    line: Callable[[Snapshot, T], bytes]
    wanted: Callable[[Snapshot, T], bool] | None = None
    is_number: bool = True  # the first part of the keys
    newest_first: bool = False


def wish_of(
    request: Request, filter_: Filter | None, columns: Mapping[str, str]
) -> Callable[[Key | None, bool], Wish]:
    """Return what makes a wish for the rows of a listing, as the query asks: from a key on, in a direction."""
    conditions = filter_.conditions(columns) if filter_ is not None else None
    whole_wish = Wish(
        namespace=request.namespace,
        prefix=request.query.text("prefix"),
        conditions=conditions.texts if conditions else (),
        values=conditions.values if conditions else {},
    )
    return lambda start, reverse: msgspec.structs.replace(whole_wish, start=start, reverse=reverse)


class _Place(msgspec.Struct, frozen=True):
    """Where a listing goes on, and how many elements are still to come; None: all."""

    start: Key | None
    left: int | None = None


class _Step(msgspec.Struct, frozen=True):
    """The elements that a step made, and where to go on.

    `is_full`: there begins the next page. Without a place the listing has come to its end.
    """

    lines: list[bytes]
    then: _Place | None = None
    is_full: bool = False


class _Walk(Generic[T]):
    """A way through a listing, in one direction."""

    def __init__(self, listing: Listing[T], *, reverse: bool) -> None:
        self._listing, self._reverse = listing, reverse

    def _step(self, db: Snapshot, place: _Place, room: int) -> _Step:
        """Make elements until there is no room, or as many as are left; without room only count."""
        lines: list[bytes] = []
        listing, left, made, looked = self._listing, place.left, 0, 0
        for item in listing.rows(db, place.start, self._reverse):
            if looked == STEP_ROWS or (room and made >= room):
                return _Step(lines, _Place(listing.key(item), left))
            looked += 1
            if listing.wanted is not None and not listing.wanted(db, item):
                continue
            if left == 0:
                return _Step(lines, _Place(listing.key(item), left), is_full=True)
            left = None if left is None else left - 1
            if room:
                lines.append(listing.line(db, item))
                made += len(lines[-1])
        return _Step(lines)

    def part(self, db: Snapshot, place: _Place) -> Part:
        """Return the next part of a list that has no token, or of which it is known."""
        step = self._step(db, place, STEP_BYTES)
        then = step.then
        if then is None or then.left == 0:
            return Part(step.lines)
        return Part(step.lines, lambda later: self.part(later, then))

    def page(
        self,
        db: Snapshot,
        place: _Place,
        index: int,
        lines: Sequence[bytes] = (),
        cut: _Place | None = None,
    ) -> Reply:
        """Return a page with the token of the next one, or what goes on to look for that.

        `lines` have been made so far. Of a long page only the first are, up to `cut`.
        """
        room = 0 if cut else STEP_BYTES - sum(map(len, lines))
        step = self._step(db, place, room)
        lines, then = [*lines, *step.lines], step.then
        if then is not None and not step.is_full:
            if cut is None and sum(map(len, lines)) >= STEP_BYTES:
                cut = then
            return Reply(later=lambda later: self.page(later, then, index, lines, cut))
        token = _token(then.start) if then and then.start else ""
        if cut is None:
            return reply.read(listed(lines), index, next_token=token)
        part = Part(lines, lambda later: self.part(later, cut))
        return msgspec.structs.replace(reply.read(None, index, next_token=token), part=part)


def show(listing: Listing[T], query: Query, db: Snapshot, index: int) -> Reply:
    """Return the page of a listing that the query asks for, or all of it in parts."""
    walk = _Walk(listing, reverse=_reversed(query) != listing.newest_first)
    token, per_page = query.text("next_token"), int(query.text("per_page") or 0)
    start = _parse(token, is_number=listing.is_number) if token else None
    if per_page:
        return walk.page(db, _Place(start, max(per_page, 0)), index)
    part = walk.part(db, _Place(start))
    if part.rest is None:
        return reply.read(listed(part.lines), index)
    return msgspec.structs.replace(reply.read(None, index), part=part)


def in_steps(
    items: Sequence[T], line: Callable[[Snapshot, T], bytes], db: Snapshot, made: Reply
) -> Reply:
    """Return an answer whose body is a list with a line for each item; a long one comes in parts.

    Each step makes so many lines as fit into it, and sees its own moment: `line` is empty for an item
    that is gone since.
    """

    def part(db: Snapshot, first: int) -> Part:
        lines: list[bytes] = []
        room, number = STEP_BYTES, first
        while number < len(items) and room > 0:
            if text := line(db, items[number]):
                lines.append(text)
                room -= len(text)
            number += 1
        if number == len(items):
            return Part(lines)
        return Part(lines, lambda later: part(later, number))

    begun = part(db, 0)
    if begun.rest is None:
        return msgspec.structs.replace(made, body=listed(begun.lines))
    return msgspec.structs.replace(made, part=begun)
