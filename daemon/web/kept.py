"""Answers that still hold: a list that is asked for again while nothing has changed is not made again.

A route names the tables on which its answer depends and nothing else does: their indexes move with
every change. As long as nothing at all is written not even they are looked at. What is kept is
bounded in number and bytes; what was used last stays longest.
"""

from collections import OrderedDict

import msgspec

from daemon.web.reply import Reply
from daemon.web.request import Read, Request
from storage.readers import Snapshot

MOST = 1024  # answers
MOST_BYTES = 8 * 1024 * 1024
EVERYWHERE = "*"  # of all namespaces, each caller sees what it may
_NO_PART = frozenset({"index", "wait", "pretty", "stale"})  # of what an answer depends on

_Key = tuple[object, ...]


class _Answer(msgspec.Struct):
    indexes: tuple[int, ...]
    reply: Reply
    size: int
    moment: int | None  # of the store, when it was found to hold


class Kept:
    """The answers of one daemon that are kept."""

    def __init__(self) -> None:
        self._answers: OrderedDict[_Key, _Answer] = OrderedDict()
        self._bytes = 0

    def at(self, moment: int | None, route: Read, request: Request) -> Reply | None:
        """Return the answer of a read if it was found to hold at this moment of the store."""
        if moment is None or not _can_be_kept(route, request):
            return None
        key = _key(route, request)
        known = self._answers.get(key)
        if known is None or known.moment != moment:
            return None
        self._answers.move_to_end(key)
        return known.reply

    def reply(
        self, route: Read, request: Request, db: Snapshot, moment: int | None = None
    ) -> Reply:
        """Return the answer of a read: the one that is kept if it still holds, else a new one."""
        if not _can_be_kept(route, request):
            return route.handler(request, db)
        indexes, key = self.indexes(route, request, db), _key(route, request)
        known = self._answers.get(key)
        if known is not None and known.indexes == indexes:
            known.moment = moment
            self._answers.move_to_end(key)
            return known.reply
        made = route.handler(request, db)
        self._keep(key, indexes, made, moment)
        return made

    @staticmethod
    def indexes(route: Read, request: Request, db: Snapshot) -> tuple[int, ...]:
        """Return what has to stand still while the answer of a read holds; nothing for one that is not kept."""
        tables = route.tables if _can_be_kept(route, request) else ()
        return tuple(db.table_index(table) for table in tables)

    def keep(self, route: Read, request: Request, indexes: tuple[int, ...], made: Reply) -> None:
        """Keep an answer that was made elsewhere, when these were the indexes of its tables."""
        if indexes:
            self._keep(_key(route, request), indexes, made, None)

    def _keep(self, key: _Key, indexes: tuple[int, ...], made: Reply, moment: int | None) -> None:
        self._forget(key)
        size = len(made.body) if isinstance(made.body, bytes) else MOST_BYTES
        if size >= MOST_BYTES:
            return
        self._answers[key] = _Answer(indexes, made, size, moment)
        self._bytes += size
        while len(self._answers) > MOST or self._bytes > MOST_BYTES:
            self._forget(next(iter(self._answers)))

    def _forget(self, key: _Key) -> None:
        if known := self._answers.pop(key, None):
            self._bytes -= known.size


def _can_be_kept(route: Read, request: Request) -> bool:
    return bool(route.tables) and request.namespace != EVERYWHERE


def _key(route: Read, request: Request) -> _Key:
    """Return all that an answer depends on besides the store: in the namespace that was allowed."""
    asked = (pair for pair in request.query.pairs if pair[0] not in _NO_PART)
    return (route.path, request.namespace, *request.parameters.values(), *asked)
