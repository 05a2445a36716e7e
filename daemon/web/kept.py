"""Answers that still hold: a list that is asked for again while nothing has changed is not made again.

A route names the tables on which its answer depends and nothing else does: their indexes move with
every change. What is kept is bounded in number and bytes; what was used last stays longest.
"""

from collections import OrderedDict

import msgspec

from daemon.web.reply import Reply
from daemon.web.request import Read, Request
from storage.readers import Snapshot

MOST = 64  # answers
MOST_BYTES = 8 * 1024 * 1024
EVERYWHERE = "*"  # of all namespaces, each caller sees what it may
_NO_PART = frozenset({"index", "wait", "pretty", "stale"})  # of what an answer depends on

_Key = tuple[object, ...]


class _Answer(msgspec.Struct, frozen=True):
    indexes: tuple[int, ...]
    reply: Reply
    size: int


class Kept:
    """The answers of one daemon that are kept."""

    def __init__(self) -> None:
        self._answers: OrderedDict[_Key, _Answer] = OrderedDict()
        self._bytes = 0

    def reply(self, route: Read, request: Request, db: Snapshot) -> Reply:
        """Return the answer of a read: the one that is kept if it still holds, else a new one."""
        if not route.tables or request.namespace == EVERYWHERE:
            return route.handler(request, db)
        indexes = tuple(db.table_index(table) for table in route.tables)
        asked = tuple(pair for pair in request.query.pairs if pair[0] not in _NO_PART)
        key = (request.path, *asked)
        known = self._answers.get(key)
        if known is not None and known.indexes == indexes:
            self._answers.move_to_end(key)
            return known.reply
        made = route.handler(request, db)
        self._keep(key, indexes, made)
        return made

    def _keep(self, key: _Key, indexes: tuple[int, ...], made: Reply) -> None:
        self._forget(key)
        size = len(made.body) if isinstance(made.body, bytes) else MOST_BYTES
        if size >= MOST_BYTES:
            return
        self._answers[key] = _Answer(indexes, made, size)
        self._bytes += size
        while len(self._answers) > MOST or self._bytes > MOST_BYTES:
            self._forget(next(iter(self._answers)))

    def _forget(self, key: _Key) -> None:
        if known := self._answers.pop(key, None):
            self._bytes -= known.size
