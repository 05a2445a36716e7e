"""Variables: list, read, check and set, lock, remove."""

import msgspec
from msgspec import UNSET, UnsetType

from daemon.api.paging import paginate
from daemon.jobspec import gotext
from daemon.jobspec.durations import read_duration
from daemon.jobspec.filter import compile_filter
from daemon.variables import change
from daemon.variables.change import Name, Outcome, is_locked, items_of
from daemon.variables.rules import fault_of_items, fault_of_path
from daemon.web import reply
from daemon.web.reply import TEXT, Reply
from daemon.web.request import Request
from storage.errors import Denied, Invalid, Malformed, NotFound
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

# What the peer's clients send behind the question mark, each by its presence alone.
_LOCK_OPERATIONS = ("lock-acquire", "lock-renew", "lock-release")
_ABSENT, _FREE = "variable doesn't exist", "variable doesn't hold a lock"
_OTHERS = "attempting to modify locked variable"
_LOCK_SPAN = 15 * SECOND  # unless said otherwise
_MIN_TTL, _MAX_TTL = 10 * SECOND, 24 * HOUR
_MAX_DELAY = 365 * 24 * HOUR  # the peer has no limit; its sum with a time has to be one


def index(request: Request, db: Snapshot) -> Reply:
    """List variables by namespace and path, without their values."""
    query = request.query
    found = variables.listed(db, request.namespace, query.text("prefix"))
    sees = request.caller.grant.may_with_variable
    shown = [
        _metadata(request, entry) for entry in found if sees(entry.namespace, entry.path, "list")
    ]
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
    """Change a variable, or take, renew or release its lock."""
    if not request["path"]:
        raise Malformed("missing variable path")
    body = await request.decoded(SubmittedVariable)
    namespace = request.query.text("namespace") or body.namespace or request.namespace
    name = Name(namespace, request["path"])
    _require(request, name)
    operations = [one for one in _LOCK_OPERATIONS if one in request.query]
    if len(operations) > 1:
        raise Malformed("multiple lock operations")
    if operations and request.query.text("cas"):
        raise Malformed("CAS can't be used with lock operations")
    match operations:
        case ["lock-acquire"]:
            return await _acquire(request, name, body)
        case ["lock-renew"]:
            return await _renew(request, name, body)
        case ["lock-release"]:
            return await _release(request, name, body)
        case _:
            return await _put(request, name, body)


async def _put(request: Request, name: Name, body: SubmittedVariable) -> Reply:
    expected = _expected(request)
    lock = Held()
    if body.lock is not None:
        if not body.lock.id:
            return _refusal("RPC Error:: 400,variable should not contain lock definition")
        lock = _held(body.lock, body.lock.id)
    if not body.items:
        raise Malformed("variable missing required Items object")
    fault = fault_of_path(name.path) or fault_of_items(body.items) or _fault_of_lock(lock)
    if fault:
        return _refusal(fault)
    parts = request.parts
    done = await change.put(
        parts.store,
        parts.seal,
        name,
        body.items,
        expected=expected,
        lock=lock,
        now=parts.clock.now(),
    )
    if done.by_lock:
        return _locked(name)
    return _answer(request, done, as_holder=True)


async def _acquire(request: Request, name: Name, body: SubmittedVariable) -> Reply:
    sent = body.lock or SubmittedLock()
    wanted = _held(sent, next(request.parts.ids))
    fault = fault_of_path(name.path) or fault_of_items(body.items or {}) or _fault_of_lock(wanted)
    if fault:
        return _refusal(fault)
    parts = request.parts
    done = await change.acquire(
        parts.store,
        parts.seal,
        name,
        body.items,
        lock=wanted,
        own_id=sent.id,
        now=parts.clock.now(),
    )
    return _locked(name) if done.by_lock else _answer(request, done, as_holder=True)


async def _renew(request: Request, name: Name, body: SubmittedVariable) -> Reply:
    if body.lock is None or not body.lock.id:
        raise Invalid("1 error occurred:\n\t* missing lock ID\n\n")
    parts = request.parts
    now = parts.clock.now()
    done = await change.renew(parts.store, name, body.lock.id, now)
    if not done.conflict:
        assert done.entry is not None  # noqa: S101  # a change that succeeds has one
        return Reply(body=_metadata(request, done.entry, as_holder=True), index=done.index)
    if done.entry is None:
        raise NotFound(_ABSENT, index=done.index)
    return reply.text(_OTHERS if is_locked(done.entry, now) else _FREE, 409)


async def _release(request: Request, name: Name, body: SubmittedVariable) -> Reply:
    if body.items:
        return _refusal("lock release operation doesn't take variable items")
    if body.lock is None or not body.lock.id:
        return _refusal("missing lock ID")
    parts = request.parts
    now = parts.clock.now()
    done = await change.release(parts.store, name, body.lock.id, now)
    if not done.conflict:
        assert done.entry is not None  # noqa: S101  # a change that succeeds has one
        return Reply(body=_metadata(request, done.entry), index=done.index)
    if done.entry is not None and is_locked(done.entry, now):
        return _locked(name)
    said = _FREE if done.entry else _ABSENT
    return Reply(body=said.encode(), status=500, content_type=TEXT, index=0)


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
    if done.by_lock:
        return _locked(name)
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


def _held(lock: SubmittedLock, lock_id: str) -> Held:
    """Return a lock as it was sent, with the usual spans where it names none. Raises `Malformed`."""
    return Held(id=lock_id, ttl=_span("TTL", lock.ttl), delay=_span("LockDelay", lock.lock_delay))


def _span(name: str, value: object) -> int:
    """Return the nanoseconds of a span of a lock. Raises `Malformed`."""
    if isinstance(value, str) and value:
        try:
            return read_duration(value)
        except ValueError as error:
            raise Malformed(str(error)) from None
    span = value or _LOCK_SPAN
    if isinstance(span, bool) or not isinstance(span, int | float):
        raise Malformed(f"{name} {value!r} is not a duration such as 15s")
    return int(span)


def _fault_of_lock(lock: Held) -> str:
    if not lock.id:
        return ""
    faults = []
    if not _MIN_TTL <= lock.ttl <= _MAX_TTL:
        faults.append("TTL must be between 10 seconds and 24 hours")
    if not 0 <= lock.delay <= _MAX_DELAY:
        faults.append("LockDelay must be between 0 seconds and 1 year")
    return gotext.multi_error(faults)


# ---- what is answered ----------------------------------------------------------------------------


def _refusal(fault: str) -> Reply:
    """Return why there cannot be such a variable, in the form that the peer's clients know."""
    return Reply(body=f"RPC Error:: 400,{fault}".encode(), status=400, content_type=TEXT, index=0)


def _locked(name: Name) -> Reply:
    """Return what the peer says to whoever changes a variable that another holds."""
    found = VariableMetadata(
        create_index=0,
        create_time=0,
        modify_index=0,
        modify_time=0,
        namespace=name.namespace,
        path=name.path,
    )
    return Reply(body=encode(found), status=409, content_type=TEXT, index=0)


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
    return _metadata(request, entry)


def _shown(request: Request, entry: Entry, *, as_holder: bool = False) -> Variable:
    parts = request.parts
    return Variable(
        create_index=entry.create_index,
        create_time=entry.create_time,
        items=items_of(parts.seal, entry),
        lock=_lock(request, entry, as_holder=as_holder),
        modify_index=entry.modify_index,
        modify_time=entry.modify_time,
        namespace=entry.namespace,
        path=entry.path,
    )


def _metadata(request: Request, entry: Entry, *, as_holder: bool = False) -> VariableMetadata:
    return VariableMetadata(
        create_index=entry.create_index,
        create_time=entry.create_time,
        lock=_lock(request, entry, as_holder=as_holder),
        modify_index=entry.modify_index,
        modify_time=entry.modify_time,
        namespace=entry.namespace,
        path=entry.path,
    )


def _lock(request: Request, entry: Entry, *, as_holder: bool) -> Lock | UnsetType:
    """Return the lock that is held; its id is for the holder, and for whoever may do everything."""
    if not is_locked(entry, request.parts.clock.now()):
        return UNSET
    return Lock(
        id=entry.lock.id if as_holder or request.caller.grant.everything else "",
        ttl=gotext.duration(entry.lock.ttl),
        lock_delay=gotext.duration(entry.lock.delay),
    )
