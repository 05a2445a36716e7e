"""Response cache: a repeated read is not computed again while its data is unchanged.

A route names all tables on which its response depends. The index of a table changes with every
write to the table. If nothing was written to the store since the last read, not even the indexes
are read. The cache has limits for entries and bytes, and drops the least recently used entry.
"""

from collections import OrderedDict

import msgspec

from daemon.web.reply import HandlerReply
from daemon.web.request import ReadRoute, Request
from storage.read_pool import ReadSnapshot

MOST = 1024  # responses
MOST_BYTES = 8 * 1024 * 1024
EVERYWHERE = "*"  # all namespaces; each caller sees a different part of them
# parameters that do not affect a response
_NO_PART = frozenset({"index", "wait", "pretty", "stale"})

_Key = tuple[object, ...]


class _Answer(msgspec.Struct):
    indexes: tuple[int, ...]
    reply: HandlerReply
    size: int
    moment: int | None  # the store's version at which the entry was last found valid


class ResponseCache:
    """The cached responses of one daemon."""

    def __init__(self) -> None:
        self._answers: OrderedDict[_Key, _Answer] = OrderedDict()
        self._bytes = 0

    def at(self, moment: int | None, route: ReadRoute, request: Request) -> HandlerReply | None:
        """Return the cached response of a read, or None if it may be out of date.

        `moment` is the number of the store's last change. The response is returned only if it was
        last found valid after this change. If `moment` is None, return None.
        """
        if moment is None or not _is_cacheable(route, request):
            return None
        key = _key(route, request)
        cached = self._answers.get(key)
        if cached is None or cached.moment != moment:
            return None
        self._answers.move_to_end(key)
        return cached.reply

    def reply(
        self, route: ReadRoute, request: Request, db: ReadSnapshot, moment: int | None = None
    ) -> HandlerReply:
        """Return the response of a read, from the cache if it is still valid there."""
        if not _is_cacheable(route, request):
            return route.handler(request, db)
        indexes, key = self.indexes(route, request, db), _key(route, request)
        cached = self._answers.get(key)
        if cached is not None and cached.indexes == indexes:
            cached.moment = moment
            self._answers.move_to_end(key)
            return cached.reply
        reply = route.handler(request, db)
        self._store(key, indexes, reply, moment)
        return reply

    @staticmethod
    def indexes(route: ReadRoute, request: Request, db: ReadSnapshot) -> tuple[int, ...]:
        """Return the indexes that a cached response depends on; empty if the route is not cached."""
        tables = route.tables if _is_cacheable(route, request) else ()
        return tuple(db.table_index(table) for table in tables)

    def store(
        self,
        route: ReadRoute,
        request: Request,
        indexes: tuple[int, ...],
        handler_reply: HandlerReply,
    ) -> None:
        """Store a response that was computed elsewhere.

        `indexes` are the indexes of the route's tables at the time of the computation.
        """
        if indexes:
            self._store(_key(route, request), indexes, handler_reply, None)

    def _store(
        self, key: _Key, indexes: tuple[int, ...], handler_reply: HandlerReply, moment: int | None
    ) -> None:
        self._forget(key)
        size = len(handler_reply.body) if isinstance(handler_reply.body, bytes) else MOST_BYTES
        if size >= MOST_BYTES:
            return
        self._answers[key] = _Answer(indexes, handler_reply, size, moment)
        self._bytes += size
        while len(self._answers) > MOST or self._bytes > MOST_BYTES:
            self._forget(next(iter(self._answers)))

    def _forget(self, key: _Key) -> None:
        if cached := self._answers.pop(key, None):
            self._bytes -= cached.size


def _is_cacheable(route: ReadRoute, request: Request) -> bool:
    return bool(route.tables) and request.namespace != EVERYWHERE


def _key(route: ReadRoute, request: Request) -> _Key:
    """Return everything that a response depends on, except for the store."""
    query_pairs = (pair for pair in request.query.pairs if pair[0] not in _NO_PART)
    return (route.path, request.namespace, *request.parameters.values(), *query_pairs)
