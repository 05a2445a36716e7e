"""Queues: their slots, the runs and steps that hold them, and those that wait."""

from daemon.jobspec.steward_meta import queue_name
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Invalid, Malformed, NotFound
from storage.queries import concurrency, namespaces, step_slots
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.concurrency import MAX_NOTE, MOST_QUEUES, MOST_SLOTS, QueueView
from storage.records.flow import SLOTS_TABLE
from storage.writer import Transaction

_MOST = 200  # runs that wait, and steps that wait, shown


class QueueRequest(Record, frozen=True, kw_only=True):
    """The number of slots of a queue, and a note."""

    slots: int = 0
    note: str = ""


class QueueResponse(Record, frozen=True, kw_only=True):
    """The response to a change of a queue."""

    index: int


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the queues: those with a limit, and those with runs or steps."""
    found = [
        line
        for line in concurrency.lines(db, request.namespace)
        if request.namespace != "*" or request.sees(line.namespace)
    ]
    return reply.read_reply(found, db.table_index(SLOTS_TABLE))


def read(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a queue with the runs or steps that hold its slots, and the first 200 that wait."""
    if request.namespace == "*":
        raise Malformed('namespace is "*", but a queue is in one namespace: name it')
    key = (request.namespace, request["name"])
    line = next(iter(concurrency.lines(db, *key)), None)
    if line is None:
        raise NotFound("queue not found", index=db.table_index(SLOTS_TABLE))
    queue_view = QueueView(
        **{name: getattr(line, name) for name in line.__struct_fields__},
        holders=[*concurrency.holders(db, key), *step_slots.holders(db, key)],
        waiters=[*concurrency.waiters(db, key, _MOST), *step_slots.waiters(db, key, _MOST)],
    )
    return reply.read_reply(queue_view, db.table_index(SLOTS_TABLE))


async def put(request: Request) -> HandlerReply:
    """Set the number of slots of a queue. A lower number stops no run."""
    body = await request.decoded(QueueRequest)
    key = (request.namespace, _name(request))
    if not 1 <= body.slots <= MOST_SLOTS:
        raise Malformed(f"Slots is {body.slots}; it must be from 1 to {MOST_SLOTS}")
    if len(body.note) > MAX_NOTE:
        raise Malformed(f"Note has {len(body.note)} characters; {MAX_NOTE} is the most")

    def write(tx: Transaction) -> int:
        if not namespaces.exists(tx, key[0]):
            raise Malformed(f'queue "{key[1]}" is in nonexistent namespace "{key[0]}"')
        if not concurrency.has_limit(tx, key) and concurrency.limits(tx, key[0]) >= MOST_QUEUES:
            raise Malformed(
                f'queue "{key[1]}": the limits of {MOST_QUEUES} queues are set in namespace '
                f'"{key[0]}", which is the most: delete one of them'
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
            raise NotFound(f"queue {key[1]!r} has no limit of its own", index=tx.index)
        return tx.index

    done = await request.parts.store.write(write)
    return HandlerReply(body=QueueResponse(index=done), index=done)


def _name(request: Request) -> str:
    try:
        return queue_name(request["name"])
    except Invalid as error:
        raise Malformed(f"the name of a queue {error}") from None
