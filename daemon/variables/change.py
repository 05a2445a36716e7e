"""Variable changes: check-and-set and locks.

If the state differs from the expected one, an operation changes nothing and returns the current
state. A caller that knows a lock's ID holds the lock until it releases the lock or the TTL passes
without renewal. After a lock expires, no caller can acquire it during its delay. In this time a
former holder can finish its work.
"""

import msgspec

from daemon.acl.seal import EnvelopeCipher
from storage.errors import Malformed
from storage.queries import namespaces, variables
from storage.queries.variables import VariableLock, VariableRow
from storage.records.codec import encode
from storage.store import Store
from storage.writer import Transaction


class VariableKey(msgspec.Struct, frozen=True):
    """The namespace and path of a variable."""

    namespace: str
    path: str

    @property
    def place(self) -> str:
        """Return the path at which the store keeps the encrypted items."""
        return variables.variable_path(self.namespace, self.path)


class ChangeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a change: the new variable, or the current one if nothing changed.

    `by_lock` is true if a held or a missing lock prevented the change. `absent` is true if the
    variable of a deletion does not exist.
    """

    index: int
    entry: VariableRow | None = None
    conflict: bool = False
    by_lock: bool = False
    absent: bool = False


def decrypt_items(seal: EnvelopeCipher, entry: VariableRow) -> dict[str, str]:
    """Return the decrypted items of a variable. Raises `Unsealable`."""
    plain = seal.unseal(entry.sealed, variables.variable_path(entry.namespace, entry.path))
    return msgspec.json.decode(plain, type=dict[str, str])


def is_locked(entry: VariableRow, now: int) -> bool:
    """Return whether the lock of a variable is held at a time."""
    return bool(entry.lock.id) and now < entry.lock.ends


def _permits_change(entry: VariableRow, lock_id: str, now: int) -> bool:
    """Return whether a variable's lock permits a change by a caller that names `lock_id`.

    A caller that names a lock claims to hold it. If the caller has lost the lock, the change must
    fail.
    """
    return entry.lock.id == lock_id if is_locked(entry, now) else not lock_id


def _is_as_expected(entry: VariableRow | None, expected: int | None) -> bool:
    """Return whether a variable has the expected modify index; 0 means absent."""
    return expected is None or expected == (entry.modify_index if entry else 0)


async def put(
    store: Store,
    seal: EnvelopeCipher,
    name: VariableKey,
    items: dict[str, str],
    *,
    expected: int | None,
    lock: VariableLock,
    now: int,
) -> ChangeResult:
    """Create or update a variable; the lock holder also sets the TTL and delay of its lock.

    Raises `Malformed` if the namespace does not exist.
    """
    sealed = seal.seal(encode(items), name.place)

    def write(tx: Transaction) -> ChangeResult:
        _check_namespace(tx, name)
        entry = variables.find(tx, name.namespace, name.path)
        is_own = _permits_change(entry, lock.id, now) if entry else not lock.id
        if not is_own or not _is_as_expected(entry, expected):
            return _conflict(tx, entry, by_lock=not is_own)
        changed = _changed(entry, name, sealed, now)
        if lock.id:
            new_lock = msgspec.structs.replace(lock, ends=changed.lock.ends)
            changed = msgspec.structs.replace(changed, lock=new_lock)
        return ChangeResult(index=tx.index, entry=variables.put(tx, changed))

    return await store.write(write)


async def remove(
    store: Store, name: VariableKey, *, expected: int | None, lock_id: str, now: int
) -> ChangeResult:
    """Delete a variable.

    If the variable does not exist, the result is a success, unless an index was expected.
    """

    def write(tx: Transaction) -> ChangeResult:
        entry = variables.find(tx, name.namespace, name.path)
        if entry is None and not expected:
            return ChangeResult(index=tx.last_index(), absent=True)
        is_own = entry is None or _permits_change(entry, lock_id, now)
        if entry is None or not is_own or not _is_as_expected(entry, expected):
            return _conflict(tx, entry, by_lock=not is_own)
        variables.remove(tx, entry)
        return ChangeResult(index=tx.index)

    return await store.write(write)


async def acquire_lock(
    store: Store,
    seal: EnvelopeCipher,
    name: VariableKey,
    items: dict[str, str] | None,
    *,
    lock: VariableLock,
    own_id: str = "",
    now: int,
) -> ChangeResult:
    """Acquire the lock of a variable; create the variable if it does not exist.

    Unless `items` is None, the items replace those of the variable. A holder that passes its lock
    ID as `own_id` keeps the lock. The expiry time in `lock` is ignored. Raises `Malformed` if the
    namespace does not exist.
    """
    sealed = seal.seal(encode(items or {}), name.place)
    taken = msgspec.structs.replace(lock, ends=now + lock.ttl)

    def write(tx: Transaction) -> ChangeResult:
        _check_namespace(tx, name)
        entry = variables.find(tx, name.namespace, name.path)
        is_own = entry is not None and bool(own_id) and _permits_change(entry, own_id, now)
        if entry is not None and not is_own and now < entry.lock.ends + entry.lock.delay:
            return _conflict(tx, entry, by_lock=True)
        new_sealed = entry.sealed if entry is not None and items is None else sealed
        new_lock = msgspec.structs.replace(taken, id=own_id) if is_own else taken
        changed = msgspec.structs.replace(_changed(entry, name, new_sealed, now), lock=new_lock)
        return ChangeResult(index=tx.index, entry=variables.put(tx, changed))

    return await store.write(write)


async def release_lock(store: Store, name: VariableKey, lock_id: str, now: int) -> ChangeResult:
    """Release a lock. Another caller can acquire it immediately."""

    def write(tx: Transaction) -> ChangeResult:
        entry = variables.find(tx, name.namespace, name.path)
        if entry is None or not is_locked(entry, now) or entry.lock.id != lock_id:
            return _conflict(tx, entry, by_lock=True)
        freed = msgspec.structs.replace(entry, lock=VariableLock(), modify_time=now)
        return ChangeResult(index=tx.index, entry=variables.put(tx, freed))

    return await store.write(write)


async def renew_lock(store: Store, name: VariableKey, lock_id: str, now: int) -> ChangeResult:
    """Renew a lock for another TTL."""

    def write(tx: Transaction) -> ChangeResult:
        entry = variables.find(tx, name.namespace, name.path)
        if entry is None or not is_locked(entry, now) or entry.lock.id != lock_id:
            return _conflict(tx, entry, by_lock=True)
        new_lock = msgspec.structs.replace(entry.lock, ends=now + entry.lock.ttl)
        variables.renew(tx, entry, new_lock.ends)
        return ChangeResult(
            index=entry.modify_index, entry=msgspec.structs.replace(entry, lock=new_lock)
        )

    return await store.write(write)


def _check_namespace(tx: Transaction, name: VariableKey) -> None:
    if not namespaces.exists(tx, name.namespace):
        raise Malformed(f'variable "{name.path}" is in nonexistent namespace "{name.namespace}"')


def _changed(
    variable: VariableRow | None, name: VariableKey, sealed: bytes, now: int
) -> VariableRow:
    """Return a copy of the variable, or a new variable, with these encrypted items."""
    if variable is None:
        return VariableRow(
            namespace=name.namespace,
            path=name.path,
            create_time=now,
            modify_time=now,
            sealed=sealed,
        )
    return msgspec.structs.replace(variable, sealed=sealed, modify_time=now)


def _conflict(tx: Transaction, variable: VariableRow | None, *, by_lock: bool) -> ChangeResult:
    index = variable.modify_index if variable else tx.table_index("variables")
    return ChangeResult(index=index, entry=variable, conflict=True, by_lock=by_lock)
