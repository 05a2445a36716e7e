"""Changing variables: check and set, and locks.

A change that finds another state than it expects changes nothing and returns the state that it
found. A lock is held by whoever knows its id, until it is given back or its time has passed without
a renewal. One that was lost can be had by nobody for its delay, so that a holder which has not
noticed yet can finish what it does.
"""

import msgspec

from daemon.acl.seal import Seal
from storage.errors import Malformed
from storage.queries import namespaces, variables
from storage.queries.variables import Entry, Held
from storage.records.codec import encode
from storage.store import Store
from storage.writer import Transaction


class Name(msgspec.Struct, frozen=True):
    """Which variable is meant."""

    namespace: str
    path: str

    @property
    def place(self) -> str:
        """Return where its values are kept."""
        return variables.place(self.namespace, self.path)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a change did: the variable as it is now, or, if it did nothing, as it was found.

    `by_lock`: it did nothing because of a lock, or of one that is missing.
    """

    index: int
    entry: Entry | None = None
    conflict: bool = False
    by_lock: bool = False


def items_of(seal: Seal, entry: Entry) -> dict[str, str]:
    """Return the values of a variable. Raises `Unsealable`."""
    plain = seal.unseal(entry.sealed, variables.place(entry.namespace, entry.path))
    return msgspec.json.decode(plain, type=dict[str, str])


def is_locked(entry: Entry, now: int) -> bool:
    """Tell whether somebody holds the lock of a variable."""
    return bool(entry.lock.id) and now < entry.lock.ends


def _is_his(entry: Entry, lock_id: str, now: int) -> bool:
    """Tell whether this caller may change a variable, as far as its lock goes.

    Who names a lock says that he holds it; if he has lost it, he has to know.
    """
    return entry.lock.id == lock_id if is_locked(entry, now) else not lock_id


def _is_as_expected(entry: Entry | None, expected: int | None) -> bool:
    """Tell whether a variable is as the caller believes: changed last at that index, or 0: absent."""
    return expected is None or expected == (entry.modify_index if entry else 0)


async def put(
    store: Store,
    seal: Seal,
    name: Name,
    items: dict[str, str],
    *,
    expected: int | None,
    lock: Held,
    now: int,
) -> Outcome:
    """Create a variable, or change its values; the holder of its lock sets its spans as well.

    Raises `Malformed` when there is no such namespace.
    """
    sealed = seal.seal(encode(items), name.place)

    def write(tx: Transaction) -> Outcome:
        _check_namespace(tx, name)
        found = variables.find(tx, name.namespace, name.path)
        mine = _is_his(found, lock.id, now) if found else not lock.id
        if not mine or not _is_as_expected(found, expected):
            return _conflict(tx, found, by_lock=not mine)
        changed = _changed(found, name, sealed, now)
        if lock.id:
            held = msgspec.structs.replace(lock, ends=changed.lock.ends)
            changed = msgspec.structs.replace(changed, lock=held)
        return Outcome(index=tx.index, entry=variables.put(tx, changed))

    return await store.write(write)


async def remove(
    store: Store, name: Name, *, expected: int | None, lock_id: str, now: int
) -> Outcome:
    """Remove a variable; that there is none is as good."""

    def write(tx: Transaction) -> Outcome:
        found = variables.find(tx, name.namespace, name.path)
        if found is None:
            return Outcome(index=tx.last_index())
        mine = _is_his(found, lock_id, now)
        if not mine or not _is_as_expected(found, expected):
            return _conflict(tx, found, by_lock=not mine)
        variables.remove(tx, found)
        return Outcome(index=tx.index)

    return await store.write(write)


async def acquire(
    store: Store,
    seal: Seal,
    name: Name,
    items: dict[str, str] | None,
    *,
    lock: Held,
    own_id: str = "",
    now: int,
) -> Outcome:
    """Take the lock of a variable, which is created if necessary; `items` replaces its values.

    Whoever holds it already, and names it as `own_id`, keeps it. The end of `lock` is not looked at.
    Raises `Malformed` when there is no such namespace.
    """
    sealed = seal.seal(encode(items or {}), name.place)
    taken = msgspec.structs.replace(lock, ends=now + lock.ttl)

    def write(tx: Transaction) -> Outcome:
        _check_namespace(tx, name)
        found = variables.find(tx, name.namespace, name.path)
        is_own = found is not None and bool(own_id) and _is_his(found, own_id, now)
        if found is not None and not is_own and now < found.lock.ends + found.lock.delay:
            return _conflict(tx, found, by_lock=True)
        kept = found.sealed if found is not None and items is None else sealed
        held = msgspec.structs.replace(taken, id=own_id) if is_own else taken
        changed = msgspec.structs.replace(_changed(found, name, kept, now), lock=held)
        return Outcome(index=tx.index, entry=variables.put(tx, changed))

    return await store.write(write)


async def release(store: Store, name: Name, lock_id: str, now: int) -> Outcome:
    """Give a lock back: the next one can have it at once."""

    def write(tx: Transaction) -> Outcome:
        found = variables.find(tx, name.namespace, name.path)
        if found is None or not is_locked(found, now) or found.lock.id != lock_id:
            return _conflict(tx, found, by_lock=True)
        freed = msgspec.structs.replace(found, lock=Held(), modify_time=now)
        return Outcome(index=tx.index, entry=variables.put(tx, freed))

    return await store.write(write)


async def renew(store: Store, name: Name, lock_id: str, now: int) -> Outcome:
    """Hold a lock for another of its spans."""

    def write(tx: Transaction) -> Outcome:
        found = variables.find(tx, name.namespace, name.path)
        if found is None or not is_locked(found, now) or found.lock.id != lock_id:
            return _conflict(tx, found, by_lock=True)
        held = msgspec.structs.replace(found.lock, ends=now + found.lock.ttl)
        variables.renew(tx, found, held.ends)
        return Outcome(index=found.modify_index, entry=msgspec.structs.replace(found, lock=held))

    return await store.write(write)


def _check_namespace(tx: Transaction, name: Name) -> None:
    if not namespaces.exists(tx, name.namespace):
        raise Malformed(f'variable "{name.path}" is in nonexistent namespace "{name.namespace}"')


def _changed(found: Entry | None, name: Name, sealed: bytes, now: int) -> Entry:
    """Return a variable with other values: the one that was found, or a new one."""
    if found is None:
        return Entry(
            namespace=name.namespace,
            path=name.path,
            create_time=now,
            modify_time=now,
            sealed=sealed,
        )
    return msgspec.structs.replace(found, sealed=sealed, modify_time=now)


def _conflict(tx: Transaction, found: Entry | None, *, by_lock: bool) -> Outcome:
    index = found.modify_index if found else tx.table_index("variables")
    return Outcome(index=index, entry=found, conflict=True, by_lock=by_lock)
