"""Queues: their slots, the runs and steps that hold slots, and the waiting runs and steps."""

from collections.abc import Callable

import msgspec

from daemon.api.paging import Listing, query_factory, show
from daemon.jobspec.filter import compile_filter
from daemon.jobspec.steward_meta.key import queue_name
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Invalid, Malformed, NotFound
from storage.queries import concurrency, namespaces, step_slots
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.codec import encode
from storage.records.concurrency import (
    MAX_NOTE,
    MOST_QUEUES,
    MOST_SLOTS,
    QueueEntry,
    QueueLine,
    QueueView,
)
from storage.records.flow import SLOTS_TABLE
from storage.writer import Transaction

_MOST = 200  # entries that are shown of each kind: with a slot, and waiting


class QueueRequest(Record, frozen=True, kw_only=True):
    """The number of slots of a queue, and a note."""

    slots: int = 0
    note: str = ""


class QueueResponse(Record, frozen=True, kw_only=True):
    """The response to a change of a queue."""

    index: int


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the queues that have a limit, and the queues that have runs or steps."""
    expression = request.query.text("filter")
    matches = compile_filter(expression, QueueLine) if expression else None
    to_page_request = query_factory(request, None, {})

    def wanted(_: ReadSnapshot, line: QueueLine) -> bool:
        if not request.sees(line.namespace):
            return False
        return matches is None or matches(msgspec.to_builtins(line))

    listing = Listing[QueueLine](
        rows=lambda db, start, reverse: concurrency.page(db, to_page_request(start, reverse)),
        key=lambda line: (line.namespace, line.name),
        line=lambda _, line: encode(line),
        wanted=wanted,
        is_number=False,
    )
    return show(listing, request.query, db, db.table_index(SLOTS_TABLE))


def read(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a queue with the first 200 holders of its slots and the first 200 waiting entries."""
    if request.namespace == "*":
        raise Malformed(
            'namespace = "*" does not identify a queue: give the namespace of the queue'
        )
    key = (request.namespace, request["name"])
    line = concurrency.line(db, key)
    if line is None:
        raise NotFound("queue not found", index=db.table_index(SLOTS_TABLE))
    queue_view = QueueView(
        **{name: getattr(line, name) for name in line.__struct_fields__},
        holders=_first(db, key, concurrency.holders, step_slots.holders),
        waiters=_first(db, key, concurrency.waiters, step_slots.waiters),
    )
    return reply.read_reply(queue_view, db.table_index(SLOTS_TABLE))


_Entries = Callable[[ReadSnapshot, concurrency.Key, int], list[QueueEntry]]


def _first(
    db: ReadSnapshot, key: concurrency.Key, of_runs: _Entries, of_steps: _Entries
) -> list[QueueEntry]:
    """Return the first entries of a queue. A queue has entries for runs or for steps, not both.

    `of_runs` and `of_steps` read the two kinds of entries.
    """
    return [*of_runs(db, key, _MOST), *of_steps(db, key, _MOST)][:_MOST]


async def put(request: Request) -> HandlerReply:
    """Set the number of slots of a queue. A lower number does not stop runs."""
    body = await request.decoded(QueueRequest)
    key = (request.namespace, _name(request))
    if not 1 <= body.slots <= MOST_SLOTS:
        raise Malformed(f"Slots is {body.slots}; it must be from 1 to {MOST_SLOTS}")
    if len(body.note) > MAX_NOTE:
        raise Malformed(f"Note has {len(body.note)} characters; the maximum is {MAX_NOTE}")

    def write(tx: Transaction) -> int:
        if not namespaces.exists(tx, key[0]):
            raise Malformed(f'queue "{key[1]}" is in nonexistent namespace "{key[0]}"')
        if not concurrency.has_limit(tx, key) and concurrency.limits(tx, key[0]) >= MOST_QUEUES:
            raise Malformed(
                f'namespace "{key[0]}" already has limits for {MOST_QUEUES} queues, the maximum: '
                f'delete one before you set a limit for queue "{key[1]}"'
            )
        concurrency.set_limit(tx, key, body.slots, body.note)
        return tx.index

    done = await request.parts.store.write(write)
    return HandlerReply(body=QueueResponse(index=done), index=done)


async def delete(request: Request) -> HandlerReply:
    """Delete the limit of a queue, which then has 1 slot."""
    key = (request.namespace, _name(request))

    def write(tx: Transaction) -> int:
        if not concurrency.remove_limit(tx, key):
            raise NotFound(f"queue {key[1]!r} has no limit to delete", index=tx.index)
        return tx.index

    done = await request.parts.store.write(write)
    return HandlerReply(body=QueueResponse(index=done), index=done)


def _name(request: Request) -> str:
    try:
        return queue_name(request["name"])
    except Invalid as error:
        raise Malformed(f"the name of a queue {error}") from None
