"""Pagination of lists: `per_page`, `next_token` and `reverse`, as in Nomad.

A token names the first element of the next page. With a token but without `per_page`, the page has
all remaining elements. A token beyond the end selects an empty page. A negative `per_page` selects
an empty page with a token (source: Nomad's recorded responses `list-jobs`,
`evaluations-allocations`).

A list from the store is read in steps with a limit of rows and bytes. Each step sees one snapshot.
Between two steps, neither memory nor a snapshot is held. So readers may be slow, or disconnect.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from daemon.jobspec.filter import Filter
from daemon.web import reply
from daemon.web.parameters import QueryParameters
from daemon.web.reply import HandlerReply, ListPart, listed
from daemon.web.request import Request
from storage.errors import StorageUnreadable
from storage.queries.pages import PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.numbers import parse_integer

T = TypeVar("T")
Key = tuple[str | int, ...]

STEP_BYTES = 512 * 1024  # bytes of elements per step
STEP_ROWS = 1000  # rows per step, selected or not
INNER_ROWS = 1000  # items of a page of a list inside an object
_LARGEST = 2**63 - 1  # largest integer of SQLite
_END_OF_GROUP = b"]}"
_log = logging.getLogger("steward.api")


class ListPage(msgspec.Struct, frozen=True):
    """The elements of one page, and the token of the next page."""

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
    query: QueryParameters,
    *,
    newest_first: bool = False,
) -> ListPage:
    """Return the requested page of `items`, a short sequence sorted by `key`.

    With `newest_first`, the order without `reverse` is descending. `line` encodes one item as JSON
    and is called only for items on the page.
    """
    chosen, next_token = cut(items, key, query, newest_first=newest_first)
    return ListPage([line(row) for row in chosen], next_token)


def cut(
    items: Sequence[T],
    key: Callable[[T], Key],
    query: QueryParameters,
    *,
    newest_first: bool = False,
) -> tuple[list[T], str]:
    """Return the `items` on the requested page, sorted by `key`, and the token of the next page."""
    reverse = _reversed(query) != newest_first
    ordered = list(reversed(items)) if reverse else list(items)
    if token := query.text("next_token"):
        is_number = bool(items) and isinstance(key(items[0])[0], int)
        first = _parse(token, is_number=is_number)
        ordered = [row for row in ordered if (key(row) <= first if reverse else key(row) >= first)]
    per_page = int(query.text("per_page") or 0)
    count = len(ordered) if not per_page else max(per_page, 0)
    more = ordered[count : count + 1]
    return ordered[:count], _token(key(more[0])) if more else ""


def inner_page(
    rows: Callable[[Key | None, bool], Iterable[T]],
    *,
    key: Callable[[T], Key],
    size: Callable[[T], int],
    query: QueryParameters,
) -> tuple[list[T], str]:
    """Return the requested page of a list inside an object, and the token of the next page.

    `rows` yields the items from a key on; if its second argument is true, in reverse. The first
    part of a key is a number. A page has at most `INNER_ROWS` items. It also ends when the total
    `size` of its items reaches `STEP_BYTES`.
    """
    token, per_page = query.text("next_token"), int(query.text("per_page") or 0)
    most, left, page_rows = min(per_page or INNER_ROWS, INNER_ROWS), STEP_BYTES, list[T]()
    start = _parse(token, is_number=True) if token else None
    for row in rows(start, _reversed(query)):
        if len(page_rows) >= most or left <= 0:
            return page_rows, _token(key(row))
        page_rows.append(row)
        left -= size(row)
    return page_rows, ""


def _reversed(query: QueryParameters) -> bool:
    return query.text("reverse") in ("true", "1", "t", "T", "TRUE", "True")


def _token(key: Key) -> str:
    return ".".join(map(str, key))


def _parse(token: str, *, is_number: bool) -> Key:
    """Return a page token converted to the type of the list's keys.

    An invalid number sorts before all other keys.
    """
    head, _, tail = token.partition(".")
    if is_number:
        return (min(parse_integer(head), _LARGEST) if head.isdecimal() else -1, tail)
    return (head, tail)


# --- lists read in steps ---


class Listing(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A list that can be read from any key.

    `rows` yields the items in the order of their keys, or in reverse. `wanted` selects the items to
    show, and `line` encodes an item as JSON. With `group`, consecutive items of the same group
    become one element: a record whose last field lists these items. `group` returns the JSON text
    with which that element begins.
    """

    rows: Callable[[ReadSnapshot, Key | None, bool], Iterable[T]]
    key: Callable[[T], Key]
    line: Callable[[ReadSnapshot, T], bytes]
    wanted: Callable[[ReadSnapshot, T], bool] | None = None
    is_number: bool = True  # whether the first part of each key is a number
    newest_first: bool = False
    group: Callable[[T], bytes] | None = None


def query_factory(
    request: Request, filter_: Filter | None, columns: Mapping[str, str]
) -> Callable[[Key | None, bool], PageRequest]:
    """Return a function that creates the query of a page from its start key and direction."""
    conditions = filter_.conditions(columns) if filter_ is not None else None
    whole_wish = PageRequest(
        namespace=request.namespace,
        prefix=request.query.text("prefix"),
        conditions=conditions.texts if conditions else (),
        values=conditions.values if conditions else {},
    )
    return lambda start, reverse: msgspec.structs.replace(whole_wish, start=start, reverse=reverse)


class _Grouped(msgspec.Struct, frozen=True):
    """The last encoded line. Only the next line shows whether this line is the last of its group."""

    group: bytes
    line: bytes

    @property
    def closed(self) -> bytes:
        """Return the line as the last line of its group."""
        return self.line + _END_OF_GROUP


class _Place(msgspec.Struct, frozen=True):
    """A position in a list: its start key, how many elements remain, and a group in progress.

    A `start` of None means the beginning of the list; a `left` of None means all elements.
    """

    start: Key | None
    left: int | None = None
    open: _Grouped | None = None


class _Step(msgspec.Struct, frozen=True):
    """The elements of a step, and where to continue.

    `is_full` means that the next page begins at `then`. If `then` is None, the list has ended.
    """

    lines: list[bytes]
    then: _Place | None = None
    is_full: bool = False


class _Walk(Generic[T]):
    """The iteration over a list in one direction."""

    def __init__(self, listing: Listing[T], *, reverse: bool) -> None:
        self._listing, self._reverse = listing, reverse

    def _step(self, db: ReadSnapshot, position: _Place, bytes_left: int) -> _Step:
        """Encode the next elements until they have `bytes_left` bytes.

        If `bytes_left` is 0, only count the elements.
        """
        lines: list[bytes] = []
        listing, left, size, row_count, last = self._listing, position.left, 0, 0, position.open
        for row in listing.rows(db, position.start, self._reverse):
            if row_count == STEP_ROWS or (bytes_left and size >= bytes_left):
                return _Step(lines, _Place(listing.key(row), left, last))
            row_count += 1
            if not self._is_wanted(db, row):
                continue
            if left == 0:
                return _Step(
                    lines + self._end(last, bytes_left),
                    _Place(listing.key(row), left),
                    is_full=True,
                )
            if bytes_left:
                if (line := self._line(db, row)) is None:
                    continue
                size += len(line)
                if listing.group is None:
                    lines.append(line)
                else:
                    last = self._grouped(listing.group(row), line, last, lines)
            left = None if left is None else left - 1
        return _Step(lines + self._end(last, bytes_left))

    def _is_wanted(self, db: ReadSnapshot, row: T) -> bool:
        """Return whether an item is shown. An item that needs an unreadable row is hidden."""
        if self._listing.wanted is None:
            return True
        try:
            return self._listing.wanted(db, row)
        except StorageUnreadable as error:
            db.unreadable_rows.note(error)
            return False

    def _line(self, db: ReadSnapshot, row: T) -> bytes | None:
        """Return an item as JSON; None if it needs an unreadable row."""
        try:
            return self._listing.line(db, row)
        except StorageUnreadable as error:
            db.unreadable_rows.note(error)
        except UnicodeError:  # a damaged text outside documents, whose table is not known here
            _log.error("a list omits %r: one of its texts is not UTF-8", self._listing.key(row))
        return None

    def _grouped(
        self, group: bytes, line: bytes, last: _Grouped | None, lines: list[bytes]
    ) -> _Grouped:
        """Add the previous line `last` to `lines`, and return the new line, which is not added yet.

        If the new line is of another group, the previous group has ended.
        """
        if last is None or last.group != group:
            lines += self._end(last, bytes_left=1)
            return _Grouped(group, group + line)
        lines.append(last.line)
        return _Grouped(group, line)

    def _end(self, last: _Grouped | None, bytes_left: int) -> list[bytes]:
        return [last.closed] if last is not None and bytes_left else []

    def part(self, db: ReadSnapshot, position: _Place) -> ListPart:
        """Return the part of a list at a position, for a reply without a token of the next page."""
        step = self._step(db, position, STEP_BYTES)
        then, is_cut = step.then, self._listing.group is not None
        if then is None or then.left == 0:
            end = [] if then is None else self._end(then.open, STEP_BYTES)
            return ListPart(step.lines + end, is_cut=is_cut)
        return ListPart(step.lines, lambda later: self.part(later, then), is_cut)

    def beginning(
        self, db: ReadSnapshot, position: _Place, index: int, lines: Sequence[bytes] = ()
    ) -> HandlerReply:
        """Return the reply with a whole list, whose first part has at least `STEP_BYTES` bytes.

        Steps are repeated until the first part has that size or the list has ended. So an error in
        these steps, such as a filter that takes too long, can still become the response. `lines`
        were encoded by earlier steps.
        """
        step = self._step(db, position, STEP_BYTES - sum(map(len, lines)))
        lines, then = [*lines, *step.lines], step.then
        if then is None:
            return reply.read_reply(listed(lines), index)
        if sum(map(len, lines)) < STEP_BYTES:
            return HandlerReply(later=lambda later: self.beginning(later, then, index, lines))
        is_cut = self._listing.group is not None
        part = ListPart(list(lines), lambda later: self.part(later, then), is_cut)
        return msgspec.structs.replace(reply.read_reply(None, index), part=part)

    def page(
        self,
        db: ReadSnapshot,
        position: _Place,
        index: int,
        lines: Sequence[bytes] = (),
        cut: _Place | None = None,
    ) -> HandlerReply:
        """Return a page with the token of the next page.

        If more steps are needed, return a reply whose `later` does the next step. `lines` were
        encoded by earlier steps. A long page is sent in parts: the first part ends at `cut`.
        """
        bytes_left = 0 if cut else STEP_BYTES - sum(map(len, lines))
        step = self._step(db, position, bytes_left)
        lines, then = [*lines, *step.lines], step.then
        if then is not None and not step.is_full:
            if cut is None and sum(map(len, lines)) >= STEP_BYTES:
                cut = then
            return HandlerReply(later=lambda later: self.page(later, then, index, lines, cut))
        token = _token(then.start) if then and then.start else ""
        if cut is None:
            return reply.read_reply(listed(lines), index, next_token=token)
        is_cut = self._listing.group is not None
        part = ListPart(list(lines), lambda later: self.part(later, cut), is_cut)
        return msgspec.structs.replace(reply.read_reply(None, index, next_token=token), part=part)


def show(listing: Listing[T], query: QueryParameters, db: ReadSnapshot, index: int) -> HandlerReply:
    """Return the requested page of a list, or all of it in parts."""
    walk = _Walk(listing, reverse=_reversed(query) != listing.newest_first)
    token, per_page = query.text("next_token"), int(query.text("per_page") or 0)
    start = _parse(token, is_number=listing.is_number) if token else None
    if per_page:
        return walk.page(db, _Place(start, max(per_page, 0)), index)
    return walk.beginning(db, _Place(start), index)


def in_steps(
    items: Sequence[T],
    line: Callable[[ReadSnapshot, T], bytes],
    db: ReadSnapshot,
    handler_reply: HandlerReply,
) -> HandlerReply:
    """Return a reply whose body is a list with a line for each item; a long list is sent in parts.

    Each step encodes as many lines as fit, and has its own snapshot. `line` returns empty bytes for
    an item that was deleted in the meantime.
    """

    def part(db: ReadSnapshot, first: int) -> ListPart:
        lines: list[bytes] = []
        bytes_left, number = STEP_BYTES, first
        while number < len(items) and bytes_left > 0:
            if text := line(db, items[number]):
                lines.append(text)
                bytes_left -= len(text)
            number += 1
        if number == len(items):
            return ListPart(lines)
        return ListPart(lines, lambda later: part(later, number))

    begun = part(db, 0)
    if begun.rest is None:
        return msgspec.structs.replace(handler_reply, body=listed(begun.lines))
    return msgspec.structs.replace(handler_reply, part=begun)
