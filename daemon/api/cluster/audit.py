"""The audit log: requests that changed something or were rejected."""

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from daemon.web import reply
from daemon.web.parameters import QueryParameters
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Malformed
from storage.queries import audit
from storage.read_pool import ReadSnapshot
from storage.records.numbers import parse_integer, shorten
from storage.records.times import nanoseconds

_TEXTS = ("accessor", "address", "method", "path")
_TIMES = ("since", "until")
_PAGE = 100
_NEWEST = 2**63 - 1


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List entries, newest first. `next_token` is the number of the first entry to list."""
    query = request.query
    before = _whole(query, "next_token", _NEWEST - 1) + 1
    most = min(_whole(query, "per_page", _PAGE), audit.MOST)
    rows = audit.page(db, _filters(query), before, most + 1)
    more = str(rows[most].number) if len(rows) > most else ""
    entries = [msgspec.to_builtins(entry) for entry in rows[:most]]
    return reply.read_reply(entries, db.table_index("audit"), next_token=more)


def _filters(query: QueryParameters) -> Mapping[str, object]:
    """Return the filters in the query, by column of the audit log. Raises `Malformed`."""
    filters: dict[str, object] = {}
    for name in _TEXTS:
        if value := query.text(name):
            filters[name] = value.upper() if name == "method" else value
    if (namespace := query.text("namespace")) and namespace != "*":
        filters["namespace"] = namespace
    for name in _TIMES:
        if value := query.text(name):
            filters[name] = _time(name, value)
    if query.own_flag("refused"):
        filters["refused"] = True
    return filters


def _time(name: str, text: str) -> int:
    with suppress(ValueError):  # the error below names the accepted forms
        if text.endswith("Z"):
            return nanoseconds(text)
    raise Malformed(f"{name}={text} is not a time such as 2026-11-21T01:40:00Z")


def _whole(query: QueryParameters, name: str, default: int) -> int:
    text = query.text(name)
    if not text:
        return default
    if not text.isdecimal() or parse_integer(text) >= _NEWEST:
        raise Malformed(f"{name} = {shorten(text)!r} must be an integer from 0 to {_NEWEST - 1}")
    return parse_integer(text) or default
