"""The audit: who changed what, or was refused it."""

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from daemon.web import reply
from daemon.web.parameters import Query
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import Malformed
from storage.queries import audit
from storage.readers import Snapshot
from storage.records.numbers import whole
from storage.records.times import nanoseconds

_TEXTS = ("accessor", "address", "method", "path")
_TIMES = ("since", "until")
_PAGE = 100
_NEWEST = 2**63 - 1


def index(request: Request, db: Snapshot) -> Reply:
    """List entries, newest first; the token of the next page is the number of its first entry."""
    query = request.query
    before = _whole(query, "next_token", _NEWEST - 1) + 1
    most = min(_whole(query, "per_page", _PAGE), audit.MOST)
    found = audit.page(db, _filters(query), before, most + 1)
    more = str(found[most].number) if len(found) > most else ""
    shown = [msgspec.to_builtins(entry) for entry in found[:most]]
    return reply.read(shown, db.table_index("audit"), next_token=more)


def _filters(query: Query) -> Mapping[str, object]:
    """Return what the query asks for, in the form of the table. Raises `Malformed`."""
    filters: dict[str, object] = {}
    for name in _TEXTS:
        if value := query.text(name):
            filters[name] = value.upper() if name == "method" else value
    if (namespace := query.text("namespace")) and namespace != "*":
        filters["namespace"] = namespace
    for name in _TIMES:
        if value := query.text(name):
            filters[name] = _time(name, value)
    if query.flag("refused"):
        filters["refused"] = True
    return filters


def _time(name: str, text: str) -> int:
    with suppress(ValueError):
        if text.endswith("Z"):
            return nanoseconds(text)
    raise Malformed(f"{name}={text} is not a time such as 2026-11-21T01:40:00Z")


def _whole(query: Query, name: str, default: int) -> int:
    text = query.text(name)
    if not text:
        return default
    if not text.isdecimal() or whole(text) >= _NEWEST:
        raise Malformed(f"{name}={text} is not a number of entries")
    return whole(text) or default
