"""Locks of variables. The client renews a lock while the block that holds it runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec

from steward_client.errors import ApiError, Conflict, LockLost, NotFound, Unreachable
from steward_client.records import Variable
from steward_client.transport import Call, Connection, segment
from steward_client.wire import seconds

_RENEWALS = 3  # number of renewals in each TTL
_POLL = 1.0  # seconds between attempts to acquire a lock
_RELEASE_WITHIN = 5.0  # timeout of a release in seconds


class HeldLock(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that this client holds. Writes to the variable need its `id`."""

    path: str
    id: str
    items: dict[str, str]


@asynccontextmanager
async def hold_lock(
    connection: Connection, path: str, *, ttl: float, delay: float, wait: bool
) -> AsyncIterator[HeldLock]:
    """Hold the lock of a variable while the block runs; create the variable if it does not exist.

    If the lock is lost, the block is cancelled and `LockLost` is raised. Without `wait`, a lock
    that another client holds raises `Conflict`.
    """
    lock = _Lock(connection, path, ttl=ttl, delay=delay)
    lock_held = await lock.acquire(wait=wait)
    lost: LockLost | None = None
    failed: Exception | None = None
    try:
        async with anyio.create_task_group() as group:

            async def renew() -> None:
                nonlocal lost
                try:
                    await lock.renew_forever()
                except LockLost as error:
                    lost = error
                    group.cancel_scope.cancel()

            group.start_soon(renew)
            try:
                yield lock_held
            except Exception as error:  # raised outside the task group, which would wrap it
                failed = error
            group.cancel_scope.cancel()
    finally:
        if lost is None:
            with anyio.move_on_after(_RELEASE_WITHIN, shield=True):
                await lock.release()
    if failed is not None:
        raise failed
    if lost is not None:
        raise lost


class _Lock:
    def __init__(self, connection: Connection, path: str, *, ttl: float, delay: float) -> None:
        self._connection = connection
        self._path, self._ttl, self._delay = path, ttl, delay
        self._id = ""
        self._renewed = 0.0

    async def acquire(self, *, wait: bool) -> HeldLock:
        """Acquire the lock. Raises `Conflict`."""
        while True:
            self._renewed = anyio.current_time()
            spans = {"TTL": _span(self._ttl), "LockDelay": _span(self._delay)}
            try:
                variable = await self._change("acquire", spans)
            except Conflict:
                if not wait:
                    raise
                await anyio.sleep(_POLL)
                continue
            assert variable.lock is not None  # noqa: S101  # the holder sees its lock
            self._id = variable.lock.id
            return HeldLock(path=self._path, id=self._id, items=variable.items)

    async def renew_forever(self) -> None:
        """Renew the lock until cancelled. Raises `LockLost`."""
        while True:
            await anyio.sleep(self._ttl / _RENEWALS)
            sent_at = anyio.current_time()
            lost = f"the lock of variable {self._path!r} is lost"
            try:
                with anyio.fail_after(max(self._renewed + self._ttl - sent_at, 0)):
                    await self._change("renew", {"ID": self._id})
            except (Conflict, NotFound, TimeoutError) as error:
                raise LockLost(lost) from error
            except Unreachable as error:
                if anyio.current_time() >= self._renewed + self._ttl:
                    raise LockLost(lost) from error
                continue
            self._renewed = sent_at

    async def release(self) -> None:
        """Release the lock. Ignore errors, because an unreleased lock expires."""
        try:
            await self._change("release", {"ID": self._id})
        except (ApiError, Unreachable):
            return

    async def _change(self, operation: str, lock: dict[str, str]) -> Variable:
        call = Call(
            method="PUT",
            path=variable_path(self._path),
            query={f"lock-{operation}": True},
            body={"Path": self._path, "Lock": lock},
            repeatable=True,  # after a lost answer, `acquire` conflicts until the TTL ends
        )
        return (await self._connection.send(call)).decode(Variable)


def variable_path(path: str) -> str:
    """Return the API path of a variable."""
    return f"/v1/var/{'/'.join(segment(part) for part in path.split('/'))}"


def _span(duration: float) -> str:
    return f"{seconds(duration) // 1_000_000}ms"
