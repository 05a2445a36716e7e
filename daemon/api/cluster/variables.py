"""Variables: list, read, check and set, lock, remove."""

import msgspec
from msgspec import UNSET, UnsetType

from daemon.api.paging import paginate
from daemon.jobspec import gotext
from daemon.jobspec.filter import compile_filter
from daemon.variables import change
from daemon.variables.change import Name, Outcome, is_locked, items_of
from daemon.variables.rules import fault_of_items, fault_of_path
from daemon.web import reply
from daemon.web.parameters import duration
from daemon.web.reply import TEXT, Reply
from daemon.web.request import Request
from storage.errors import Denied, Malformed, NotFound
from storage.queries import variables
from storage.queries.variables import Entry, Held
from storage.readers import Snapshot
from storage.records.base import HOUR, SECOND
from storage.records.codec import encode
from storage.records.numbers import whole
from storage.records.variable import (
    Lock,
    SubmittedLock,
    SubmittedVariable,
    Variable,
    VariableMetadata,
)

_LOCK_SPAN = 15 * SECOND  # unless said otherwise
_MIN_TTL, _MAX_TTL = 10 * SECOND, 24 * HOUR


def index(request: Request, db: Snapshot) -> Reply:
    """List variables by namespace and path, without their values."""
    query, now = request.query, request.parts.clock.now()
    found = variables.listed(db, request.namespace, query.text("prefix"))
    sees = request.caller.grant.may_with_variable
    shown = [_metadata(entry, now) for entry in found if sees(entry.namespace, entry.path, "list")]
    if expression := query.text("filter"):
        matches = compile_filter(expression, VariableMetadata)
        shown = [one for one in shown if matches(msgspec.to_builtins(one))]
    page = paginate(shown, lambda one: (one.namespace, one.path), encode, query)
    return reply.read(page.body, db.table_index("variables"), next_token=page.next_token)


def read(request: Request, db: Snapshot) -> Reply:
    """Show a variable with its values."""
    _require(request, Name(request.namespace, request["path"]))
    found = variables.find(db, request.namespace, request["path"])
    if found is None:
        raise NotFound("variable not found", index=db.table_index("variables"))
    return reply.read(_shown(request, found), found.modify_index)


async def write(request: Request) -> Reply:
    """Change a variable, or do what `lock-operation` says."""
    if not request["path"]:
        raise Malformed("missing variable path")
    body = request.decode(SubmittedVariable)
    namespace = request.query.text("namespace") or body.namespace or request.namespace
    name = Name(namespace, request["path"])
    _require(request, name)
    operation = request.query.text("lock-operation")
    if operation and request.query.text("cas"):
        raise Malformed("CAS can't be used with lock operations")
    match operation:
        case "":
            return await _put(request, name, body)
        case "acquire":
            return await _acquire(request, name, body)
        case "release" | "renew":
            return await _keep_or_free(request, name, body, operation)
        case _:
            raise Malformed(
                f'lock-operation "{operation}" is unknown: it is acquire, renew or release'
            )


async def _put(request: Request, name: Name, body: SubmittedVariable) -> Reply:
    expected = _expected(request)
    if not body.items:
        raise Malformed("variable missing required Items object")
    if fault := fault_of_path(name.path) or fault_of_items(body.items):
        return _refusal(fault)
    parts = request.parts
    done = await change.put(
        parts.store,
        parts.seal,
        name,
        body.items,
        expected=expected,
        lock_id=body.lock.id if body.lock else "",
        now=parts.clock.now(),
    )
    return _answer(request, done)


async def _acquire(request: Request, name: Name, body: SubmittedVariable) -> Reply:
    lock = body.lock or SubmittedLock()
    wanted = Held(
        id=next(request.parts.ids),
        ttl=_span("TTL", lock.ttl),
        delay=_span("LockDelay", lock.lock_delay),
    )
    fault = fault_of_path(name.path) or fault_of_items(body.items or {}) or _fault_of_lock(wanted)
    if fault:
        return _refusal(fault)
    parts = request.parts
    now = parts.clock.now()
    done = await change.acquire(parts.store, parts.seal, name, body.items, lock=wanted, now=now)
    return _answer(request, done, as_holder=True)


async def _keep_or_free(
    request: Request, name: Name, body: SubmittedVariable, operation: str
) -> Reply:
    if body.lock is None or not body.lock.id:
        raise Malformed("the lock's ID is missing: Lock.ID is what its acquisition returned")
    act = change.renew if operation == "renew" else change.release
    done = await act(request.parts.store, name, body.lock.id, request.parts.clock.now())
    return _answer(request, done, as_holder=True)


async def remove(request: Request) -> Reply:
    """Remove a variable."""
    name = Name(request.namespace, request["path"])
    _require(request, name)
    done = await change.remove(
        request.parts.store,
        name,
        expected=_expected(request),
        lock_id=request.query.text("lock-id"),
        now=request.parts.clock.now(),
    )
    return _answer(request, done) if done.conflict else Reply(status=204, index=done.index)


def _require(request: Request, name: Name) -> None:
    """Raise `Denied` unless the caller has with this variable what the route needs."""
    if not _may(request, name, request.needs.any_of[0]):
        raise Denied


def _may(request: Request, name: Name, capability: str) -> bool:
    return request.caller.grant.may_with_variable(name.namespace, name.path, capability)


# ---- what is asked for ---------------------------------------------------------------------------


def _expected(request: Request) -> int | None:
    """Return the index that the caller believes the variable to have; None: any."""
    text = request.query.text("cas")
    if text and (problem := gotext.uint_error(text, 10, 64)):
        raise Malformed(f"can not parse cas: {problem}")
    return whole(text) if text else None


def _span(name: str, value: object) -> int:
    """Return the nanoseconds of a span of a lock. Raises `Malformed`."""
    span = duration(value) if isinstance(value, str) and value else value or _LOCK_SPAN
    if isinstance(span, bool) or not isinstance(span, int | float):
        raise Malformed(f"{name} {value!r} is not a duration such as 15s")
    return int(span)


def _fault_of_lock(lock: Held) -> str:
    if not _MIN_TTL <= lock.ttl <= _MAX_TTL:
        least, most = gotext.duration(_MIN_TTL), gotext.duration(_MAX_TTL)
        return f"the TTL of a lock is {least} to {most}, not {gotext.duration(lock.ttl)}"
    if lock.delay < 0 or lock.delay > _MAX_TTL:
        return f"the LockDelay of a lock is 0s to {gotext.duration(_MAX_TTL)}"
    return ""


# ---- what is answered ----------------------------------------------------------------------------


def _refusal(fault: str) -> Reply:
    """Return why there cannot be such a variable, in the form that the peer's clients know."""
    return Reply(body=f"RPC Error:: 400,{fault}".encode(), status=400, content_type=TEXT, index=0)


def _answer(request: Request, done: Outcome, *, as_holder: bool = False) -> Reply:
    """Return the variable as it is now; after a conflict 409, in the peer's form: as text."""
    if not done.conflict:
        assert done.entry is not None  # noqa: S101  # a change that succeeds has one
        return Reply(body=_shown(request, done.entry, as_holder=as_holder), index=done.index)
    found = _found(request, done.entry) if done.entry else None
    return Reply(body=encode(found), status=409, content_type=TEXT, index=done.index)


def _found(request: Request, entry: Entry) -> Variable | VariableMetadata:
    """Return the variable that a change has found, as far as the caller may see it."""
    if _may(request, Name(entry.namespace, entry.path), "read"):
        return _shown(request, entry)
    return _metadata(entry, request.parts.clock.now())


def _shown(request: Request, entry: Entry, *, as_holder: bool = False) -> Variable:
    parts = request.parts
    return Variable(
        create_index=entry.create_index,
        create_time=entry.create_time,
        items=items_of(parts.seal, entry),
        lock=_lock(entry, parts.clock.now(), as_holder=as_holder),
        modify_index=entry.modify_index,
        modify_time=entry.modify_time,
        namespace=entry.namespace,
        path=entry.path,
    )


def _metadata(entry: Entry, now: int) -> VariableMetadata:
    return VariableMetadata(
        create_index=entry.create_index,
        create_time=entry.create_time,
        lock=_lock(entry, now),
        modify_index=entry.modify_index,
        modify_time=entry.modify_time,
        namespace=entry.namespace,
        path=entry.path,
    )


def _lock(entry: Entry, now: int, *, as_holder: bool = False) -> Lock | UnsetType:
    """Return the lock that is held; its id is for the holder alone."""
    if not is_locked(entry, now):
        return UNSET
    return Lock(
        id=entry.lock.id if as_holder else "",
        ttl=gotext.duration(entry.lock.ttl),
        lock_delay=gotext.duration(entry.lock.delay),
    )
