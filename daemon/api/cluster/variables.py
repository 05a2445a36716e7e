"""Variables: list, read, check and set, lock, delete."""

import msgspec
from msgspec import UNSET, UnsetType

from daemon.api.paging import Listing, query_factory, show
from daemon.jobspec.durations import read_duration
from daemon.jobspec.filter import compile_filter
from daemon.text import go_format
from daemon.variables import change
from daemon.variables.change import ChangeResult, VariableKey, decrypt_items, is_locked
from daemon.variables.validation import items_error, path_error
from daemon.web import reply
from daemon.web.reply import TEXT, HandlerReply
from daemon.web.request import Request
from storage.errors import Denied, Invalid, Malformed, NotFound
from storage.queries import variables
from storage.queries.variables import VariableLock, VariableRow
from storage.read_pool import ReadSnapshot
from storage.records.base import HOUR, SECOND
from storage.records.codec import encode
from storage.records.numbers import parse_integer
from storage.records.variable import (
    Lock,
    SubmittedLock,
    SubmittedVariable,
    Variable,
    VariableMetadata,
)

_LONG = 64 * 1024  # bytes of a body whose items are added up in a few milliseconds
# Nomad's clients send one of these names as a parameter without a value.
_LOCK_OPERATIONS = ("lock-acquire", "lock-renew", "lock-release")
_ABSENT, _FREE = "variable doesn't exist", "variable doesn't hold a lock"
_OTHERS = "attempting to modify locked variable"
_LOCK_SPAN = 15 * SECOND  # default TTL and delay
_MIN_TTL, _MAX_TTL = 10 * SECOND, 24 * HOUR
_MAX_DELAY = 365 * 24 * HOUR  # Nomad has no limit, but the sum with a time must fit into 64 bits


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List variables by namespace and path, without their values."""
    query, expression = request.query, request.query.text("filter")
    sees = request.caller.grant.may_with_variable
    matches = compile_filter(expression, VariableMetadata) if expression else None
    to_page_request = query_factory(request, None, {})

    def wanted(_: ReadSnapshot, entry: VariableRow) -> bool:
        if not sees(entry.namespace, entry.path, "list"):
            return False
        return matches is None or matches(msgspec.to_builtins(_metadata(request, entry)))

    listing = Listing[VariableRow](
        rows=lambda db, start, reverse: variables.page(db, to_page_request(start, reverse)),
        key=lambda entry: (entry.namespace, entry.path),
        line=lambda _, entry: encode(_metadata(request, entry)),
        wanted=wanted,
        is_number=False,
    )
    return show(listing, query, db, db.table_index("variables"))


def read(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a variable with its values."""
    _require(request, VariableKey(request.namespace, request["path"]))
    variable = variables.find(db, request.namespace, request["path"])
    if variable is None:
        raise NotFound("variable not found", index=db.table_index("variables"))
    return reply.read_reply(_shown(request, variable), variable.modify_index)


async def write(request: Request) -> HandlerReply:
    """Change a variable, or acquire, renew or release its lock."""
    if not request["path"]:
        raise Malformed("missing variable path")
    body = await request.decoded(SubmittedVariable)
    namespace = request.query.text("namespace") or body.namespace or request.namespace
    name = VariableKey(namespace, request["path"])
    _require(request, name)
    operations = [
        lock_operation for lock_operation in _LOCK_OPERATIONS if lock_operation in request.query
    ]
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


async def _put(request: Request, name: VariableKey, body: SubmittedVariable) -> HandlerReply:
    expected = _expected(request)
    lock = VariableLock()
    if body.lock is not None:
        if not body.lock.id:
            return _refusal("RPC Error:: 400,variable should not contain lock definition")
        lock = _parse_lock(body.lock, body.lock.id)
    if not body.items:
        raise Malformed("variable missing required Items object")
    fault = path_error(name.path) or await _items_error(request, body.items)
    fault = fault or _fault_of_lock(lock)
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


async def _items_error(request: Request, items: dict[str, str]) -> str:
    """Return why items are invalid, or an empty string.

    For a long body, a thread does the check. Raises `TooOften`.
    """
    if len(request.body) <= _LONG:
        return items_error(items)
    return await request.parts.admission.run(request.client, lambda: items_error(items))


async def _acquire(request: Request, name: VariableKey, body: SubmittedVariable) -> HandlerReply:
    sent = body.lock or SubmittedLock()
    variable_lock = _parse_lock(sent, next(request.parts.ids))
    fault = path_error(name.path) or await _items_error(request, body.items or {})
    fault = fault or _fault_of_lock(variable_lock)
    if fault:
        return _refusal(fault)
    parts = request.parts
    done = await change.acquire_lock(
        parts.store,
        parts.seal,
        name,
        body.items,
        lock=variable_lock,
        own_id=sent.id,
        now=parts.clock.now(),
    )
    return _locked(name) if done.by_lock else _answer(request, done, as_holder=True)


async def _renew(request: Request, name: VariableKey, body: SubmittedVariable) -> HandlerReply:
    if body.lock is None or not body.lock.id:
        raise Invalid("1 error occurred:\n\t* missing lock ID\n\n")
    parts = request.parts
    now = parts.clock.now()
    done = await change.renew_lock(parts.store, name, body.lock.id, now)
    if not done.conflict:
        assert done.entry is not None  # noqa: S101  # a successful change has an entry
        return HandlerReply(body=_metadata(request, done.entry, as_holder=True), index=done.index)
    if done.entry is None:
        raise NotFound(_ABSENT, index=done.index)
    return reply.text(_OTHERS if is_locked(done.entry, now) else _FREE, 409)


async def _release(request: Request, name: VariableKey, body: SubmittedVariable) -> HandlerReply:
    if body.items:
        return _refusal("lock release operation doesn't take variable items")
    if body.lock is None or not body.lock.id:
        return _refusal("missing lock ID")
    parts = request.parts
    now = parts.clock.now()
    done = await change.release_lock(parts.store, name, body.lock.id, now)
    if not done.conflict:
        assert done.entry is not None  # noqa: S101  # a successful change has an entry
        return HandlerReply(body=_metadata(request, done.entry), index=done.index)
    if done.entry is not None and is_locked(done.entry, now):
        return _locked(name)
    message = _FREE if done.entry else _ABSENT
    return HandlerReply(body=message.encode(), status=500, content_type=TEXT, index=0)


async def remove(request: Request) -> HandlerReply:
    """Delete a variable."""
    name = VariableKey(request.namespace, request["path"])
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
    if done.conflict:
        return _answer(request, done)
    request.note_deletion("variable", name.path, existed=not done.absent)
    return HandlerReply(status=204, index=done.index)


def _require(request: Request, name: VariableKey) -> None:
    """Raise `Denied` unless the caller has the route's capability for this variable."""
    if not _may(request, name, request.needs.any_of[0]):
        raise Denied


def _may(request: Request, name: VariableKey, capability: str) -> bool:
    return request.caller.grant.may_with_variable(name.namespace, name.path, capability)


# --- requests -------------------------------------------------------------------------------------


def _expected(request: Request) -> int | None:
    """Return the expected index of the variable; None means any."""
    text = request.query.text("cas")
    if text and (problem := go_format.uint_error(text, 10, 64)):
        raise Malformed(f"can not parse cas: {problem}")
    return parse_integer(text) if text else None


def _parse_lock(lock: SubmittedLock, lock_id: str) -> VariableLock:
    """Return the lock of a request, with defaults for missing durations. Raises `Malformed`."""
    return VariableLock(
        id=lock_id, ttl=_span("TTL", lock.ttl), delay=_span("LockDelay", lock.lock_delay)
    )


def _span(name: str, value: object) -> int:
    """Return a duration of a lock in nanoseconds. Raises `Malformed`."""
    if isinstance(value, str) and value:
        try:
            return read_duration(value)
        except ValueError as error:
            raise Malformed(str(error)) from None
    span = value or _LOCK_SPAN
    if isinstance(span, bool) or not isinstance(span, int | float):
        raise Malformed(f"{name} {value!r} is not a duration such as 15s")
    return int(span)


def _fault_of_lock(lock: VariableLock) -> str:
    if not lock.id:
        return ""
    faults = []
    if not _MIN_TTL <= lock.ttl <= _MAX_TTL:
        faults.append("TTL must be between 10 seconds and 24 hours")
    if not 0 <= lock.delay <= _MAX_DELAY:
        faults.append("LockDelay must be between 0 seconds and 1 year")
    return go_format.multi_error(faults)


# --- responses ------------------------------------------------------------------------------------


def _refusal(fault: str) -> HandlerReply:
    """Return the error of an invalid variable in Nomad's form."""
    return HandlerReply(
        body=f"RPC Error:: 400,{fault}".encode(), status=400, content_type=TEXT, index=0
    )


def _locked(name: VariableKey) -> HandlerReply:
    """Return Nomad's error for a change of a variable that another client has locked."""
    variable_metadata = VariableMetadata(
        create_index=0,
        create_time=0,
        modify_index=0,
        modify_time=0,
        namespace=name.namespace,
        path=name.path,
    )
    return HandlerReply(body=encode(variable_metadata), status=409, content_type=TEXT, index=0)


def _answer(request: Request, done: ChangeResult, *, as_holder: bool = False) -> HandlerReply:
    """Return the reply to a change: the variable, or status 409 with the conflicting variable.

    As in Nomad, the content type of a conflict is text. With `as_holder`, the response shows the ID
    of the lock.
    """
    if not done.conflict:
        assert done.entry is not None  # noqa: S101  # a successful change has an entry
        return HandlerReply(body=_shown(request, done.entry, as_holder=as_holder), index=done.index)
    conflicting = _found(request, done.entry) if done.entry else None
    return HandlerReply(body=encode(conflicting), status=409, content_type=TEXT, index=done.index)


def _found(request: Request, entry: VariableRow) -> Variable | VariableMetadata:
    """Return the conflicting variable, with its values only if the caller may read them."""
    if _may(request, VariableKey(entry.namespace, entry.path), "read"):
        return _shown(request, entry)
    return _metadata(request, entry)


def _shown(request: Request, entry: VariableRow, *, as_holder: bool = False) -> Variable:
    parts = request.parts
    return Variable(
        create_index=entry.create_index,
        create_time=entry.create_time,
        items=decrypt_items(parts.seal, entry),
        lock=_lock(request, entry, as_holder=as_holder),
        modify_index=entry.modify_index,
        modify_time=entry.modify_time,
        namespace=entry.namespace,
        path=entry.path,
    )


def _metadata(request: Request, entry: VariableRow, *, as_holder: bool = False) -> VariableMetadata:
    return VariableMetadata(
        create_index=entry.create_index,
        create_time=entry.create_time,
        lock=_lock(request, entry, as_holder=as_holder),
        modify_index=entry.modify_index,
        modify_time=entry.modify_time,
        namespace=entry.namespace,
        path=entry.path,
    )


def _lock(request: Request, entry: VariableRow, *, as_holder: bool) -> Lock | UnsetType:
    """Return the lock; only its holder (`as_holder`) and management tokens see its ID."""
    if not is_locked(entry, request.parts.clock.now()):
        return UNSET
    return Lock(
        id=entry.lock.id if as_holder or request.caller.grant.everything else "",
        ttl=go_format.duration(entry.lock.ttl),
        lock_delay=go_format.duration(entry.lock.delay),
    )
