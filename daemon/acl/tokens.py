"""Tokens: authentication by secret, creation, expiry and revocation.

A change of a policy or token applies to the next request. Callers are cached only until the next
write, and grants until a policy changes. An expired token is rejected immediately. Its row is
deleted later in small steps, so that ten thousand tokens with the same expiry do not delay other
writes.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import msgspec
import trio

from daemon.acl.builtin import NOBODY, UNASKED, operator_token
from daemon.acl.caller_cache import CallerCache, CapabilitySetCache, LongGrant
from daemon.acl.check import Caller
from daemon.acl.grant import CapabilitySet
from daemon.acl.keyring import Keyring, new_accessor, new_key, new_secret
from daemon.acl.lockout import FailedLogins, LockoutPolicy
from daemon.acl.seal import EnvelopeCipher
from daemon.acl.workload_identity import is_of_task, token_label
from daemon.clock import Clock
from daemon.fences import Fences
from storage.errors import Malformed, TooOften, UnknownToken, UnusableToken
from storage.queries import allocations, entities, mounts, secrets, tokens
from storage.queries.pages import KeyRange
from storage.read_pool import ReadSnapshot
from storage.records.acl import SPENT, WRAPPING, Token, TokenKind
from storage.records.base import SECOND
from storage.records.identity import Mount
from storage.records.workload import Workload
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

log = logging.getLogger("steward.acl")

STEP = 50  # tokens deleted per write, which takes a few milliseconds
_LONGEST_SLEEP = 60 * SECOND  # between two rounds, because the system clock may change
_NEVER = 2**63
_FENCED = "token"
_MAPPED_BITS = 96  # bits before the IPv4 address in an address such as ::ffff:192.0.2.1
_AFTER_A_FAULT = 60 * SECOND  # nanoseconds until tokens that could not be deleted are retried
_MOST_ALONE = 1000  # tokens deleted one by one per round
_KEY = "acl/token-key"  # path of the hash key among the sealed secrets
_EVERYTHING = CapabilitySet((), everything=True)
STRANGER = Caller(
    NOBODY, CapabilitySet(())
)  # a caller that is not authenticated, without permissions


# Verifies an identity token; raises `UnknownToken` if it is invalid.
Verify = Callable[[str], Workload]


class IssuedToken(msgspec.Struct, frozen=True):
    """A new token with its secret, which is not stored."""

    secret: str
    token: Token


class TokenStore:
    """The store of all tokens; `open_tokens` creates it.

    If `asks` is false, every request has full access.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        keyring: Keyring,
        *,
        asks: bool,
        workload_of: Verify | None = None,
        lock_out: LockoutPolicy = LockoutPolicy(),  # noqa: B008  # frozen
    ) -> None:
        self._workload_of = workload_of
        self._store = store
        self._clock = clock
        self._keyring = keyring
        self._grants = CapabilitySetCache()
        self._callers = CallerCache()
        self.failures = FailedLogins(lock_out)
        self._sooner = trio.Event()
        self._looks_at = _NEVER  # time of the next round of the expiry task
        self.asks = asks

    # --- authentication

    async def identify(self, secret: str, address: str = "") -> Caller:
        """Return the caller as `resolve` does, but build a long grant in a thread.

        Raises `UnknownToken`.
        """
        while True:
            try:
                return self.resolve(secret, address, may_take_long=False)
            except LongGrant:  # the next attempt finds the grant cached, unless a policy changes
                await self._store.read_long(lambda db: self._resolve(db, secret, address))

    def resolve(self, secret: str, address: str = "", *, may_take_long: bool = True) -> Caller:
        """Return the caller with this secret and address; no secret means the anonymous token.

        Raises `UnknownToken`, and `LongGrant` unless `may_take_long`.
        """
        if not (secret or self.asks):
            return Caller(UNASKED, _EVERYTHING)
        key, moment = (self._keyring.hash(secret), address), self._store.change_number
        cached_caller = self._callers.find(key, moment)
        if cached_caller is not None and not cached_caller.token.has_ended(self._clock.now()):
            return cached_caller
        caller = self._store.read(
            lambda db: self._resolve(db, secret, address, may_take_long=may_take_long)
        )
        if caller.own_job is None:  # a task's token can become invalid without a write
            self._callers.store(key, moment, caller)
        return caller

    async def authenticate(
        self, secret: str, address: str = "", *, client_key: str = "", operator: int | None = None
    ) -> Caller:
        """Return the caller with this secret, and count a use.

        An unknown secret counts as a failure of `client_key`: a user of this host, or by default
        the address. `operator` is the ID of a user of this host who has full access and needs no
        secret. Raises `UnknownToken`, or `TooOften` after too many failures.
        """
        if operator is not None and not secret and self.asks:
            return Caller(operator_token(operator), _EVERYTHING)
        try:
            caller = await self.identify(secret, address)
        except UnusableToken:
            raise
        except UnknownToken:
            self.record_failure(client_key or address)
            raise
        if caller.token.policies == (WRAPPING,):
            await self._store.write(lambda tx: _spend_wrapping(tx, caller.token.accessor))
        if caller.token.uses_left is None:
            return caller
        return await self._store.write(lambda tx: self._use(tx, secret, address))

    def record_failure(self, client_key: str, role: str = "") -> None:
        """Record a forged or unknown credential of an address or a user. Raises `TooOften`.

        Call it after the check has failed, so that a valid credential always passes.
        """
        now = self._clock.now()
        too_many = self.failures.are_too_many(client_key, now, role)
        left = -(-self.failures.locked_for(client_key, now, role) // SECOND)
        if left and not too_many:
            log.warning("%s is locked out for %s s: too many refused credentials", client_key, left)
        if too_many:
            message = f"too many wrong credentials from {client_key}"
            later = f"try again in {left} s" if left else "wait a while"
            raise TooOften(f"{message}: {later}") from None

    def _use(self, tx: Transaction, secret: str, address: str) -> Caller:
        caller = self._resolve(tx, secret, address)  # another request may have made the last use
        left = caller.token.uses_left
        if left is None:
            return caller
        tokens.use_once(tx, caller.token.accessor)
        spent = msgspec.structs.replace(caller.token, uses_left=left - 1 or SPENT)
        return Caller(spent, caller.grant)

    def _resolve(
        self, db: ReadSnapshot, secret: str, address: str, *, may_take_long: bool = True
    ) -> Caller:
        token = self.find(db, secret) if secret else None
        if not self.asks:
            return Caller(token or UNASKED, _EVERYTHING)
        if not secret:
            return self.anonymous_caller(db, may_take_long=may_take_long)
        if token is None:
            return self._task(db, secret, may_take_long=may_take_long)
        if token.bound_cidrs and not is_within(address, token.bound_cidrs):
            raise UnusableToken
        return self.caller(db, token, may_take_long=may_take_long)

    async def identify_again(self, token: Token) -> Caller:
        """Return the caller of a token that was deleted at its last permitted use.

        The caller has the current permissions. Raises `UnknownToken` if the token has also expired.
        Raises `UnusableToken` if an object that the token depends on was deleted.
        """
        while not token.has_ended(self._clock.now()):
            try:
                return self._store.read(lambda db: self.caller(db, token, may_take_long=False))
            except LongGrant:
                await self._store.read_long(lambda db: self.caller(db, token))
        raise UnknownToken

    def anonymous_caller(self, db: ReadSnapshot, *, may_take_long: bool = True) -> Caller:
        """Return the caller of a request without a token."""
        return Caller(NOBODY, self._grants.of(db, NOBODY, may_take_long=may_take_long))

    def _task(self, db: ReadSnapshot, secret: str, *, may_take_long: bool) -> Caller:
        """Return a task as a caller; `secret` is its identity token. Raises `UnknownToken`."""
        if self._workload_of is None or secret.count(".") != 2:
            raise UnknownToken(_unreadable(secret))
        workload = self._workload_of(secret)
        allocation = allocations.find(db, workload.nomad_allocation_id)
        if allocation is None or allocation.client_terminal:
            raise UnusableToken("failed to parse signed token: allocation is terminal")
        own_job = (workload.nomad_namespace, allocation.job_id)
        grant = self._grants.of_task(db, workload, may_take_long=may_take_long)
        return Caller(token_label(workload), grant, own_job)

    def caller(self, db: ReadSnapshot, token: Token, *, may_take_long: bool = True) -> Caller:
        """Return a caller: a token, and the grant of the token's policies.

        Raises `UnusableToken` if an object that the token depends on was deleted.
        """
        if token.mount and not _is_of_mount(token, mounts.by_accessor(db, token.mount)):
            raise UnusableToken
        if token.allocation and not _is_active(db, token.allocation):
            raise UnusableToken
        if token.kind is TokenKind.BATCH and not _has_parent(db, token.parent):
            raise UnusableToken
        entity = entities.find(db, token.entity_id) if token.entity_id else None
        if token.entity_id and (entity is None or entity.is_disabled):
            raise UnusableToken
        if token.is_management:
            return Caller(token, _EVERYTHING)
        grant = self._grants.of(db, token, entity, may_take_long=may_take_long)
        return Caller(token, grant)

    def find(self, db: ReadSnapshot, secret: str) -> Token | None:
        """Return the valid token with this secret, or None."""
        token = self._keyring.batch_token(secret) or tokens.find_by_secret(
            db, self._keyring.hash(secret)
        )
        return token if token and not token.has_ended(self._clock.now()) else None

    # --- creation

    async def issue(self, token: Token, secret: str = "") -> IssuedToken:
        """Create a token; a missing accessor or secret is generated.

        A batch token is not stored, because its secret contains all its data.
        """
        complete = msgspec.structs.replace(token, accessor=token.accessor or new_accessor())
        if token.kind is TokenKind.BATCH:
            bare = msgspec.structs.replace(token, accessor="")
            return IssuedToken(self._keyring.batch_secret(bare), bare)
        chosen = secret or new_secret()
        stored = await self._store.write(lambda tx: self.add(tx, complete, chosen))
        return IssuedToken(chosen, stored)

    def add(self, tx: Transaction, token: Token, secret: str) -> Token:
        """Store a token within a write. Raises `Malformed` if the secret is already used."""
        hashed = self._keyring.hash(secret)
        if tokens.find_by_secret(tx, hashed):
            raise Malformed("cannot create a token with a duplicate ID")
        self.schedule_expiry(token.expires_at)
        return tokens.add(tx, token, hashed)

    def schedule_expiry(self, time: int | None) -> None:
        """Wake the expiry task in time for a token that expires at `time`."""
        if time is not None and time < self._looks_at:
            self._sooner.set()

    # --- expiry and revocation

    async def revoke(self, secret: str) -> None:
        """Revoke the token with this secret, and its children.

        A batch token cannot be revoked; it only expires.
        """
        hashed = self._keyring.hash(secret)

        def remove(tx: Transaction) -> None:
            if token := tokens.find_by_secret(tx, hashed):
                tokens.remove(tx, token.accessor)

        await self._store.write(remove)

    async def revoke_mount(self, mount: str) -> None:
        """Revoke all tokens of a login method, in small steps."""
        while await self._store.write(partial(_remove_of_mount, mount=mount)):
            pass

    async def revoke_moved(self, mount: Mount) -> None:
        """Revoke the tokens that an auth method issued at its earlier paths, in small steps."""
        path = f"auth/{mount.path}login"
        find = partial(tokens.issued_at_other_paths, mount=mount.accessor, path=path, most=STEP)
        while accessors := await self._store.read_long(find):
            await self._store.write(partial(_remove, accessors=accessors))

    async def remove_ended(self, fences: Fences | None = None) -> None:
        """Delete tokens as they expire, until cancelled."""
        fences = fences or Fences(self._clock)
        while True:
            # From here on, each new token reports its expiry time to `schedule_expiry`, because the
            # read below may not include the token.
            self._sooner, self._looks_at = trio.Event(), _NEVER
            now = self._clock.now()
            async with tolerate_disk_full("cannot remove expired tokens"):
                with fences.around(_FENCED, "together"):
                    while await self._store.write(partial(_remove_ended, now=now)):
                        pass
                if fences.of(_FENCED, "together"):
                    await self._remove_each(now, fences)
            self._looks_at = self._next_round(now)
            if fences.of(_FENCED, "together"):
                self._looks_at = max(self._looks_at, now + _AFTER_A_FAULT)
            with trio.move_on_after((self._looks_at - now) / SECOND):
                await self._sooner.wait()

    async def _remove_each(self, now: int, fences: Fences) -> None:
        """Delete expired tokens one by one, after an attempt to delete several in one step failed."""
        for accessor in self._store.read(partial(tokens.ended, now=now, most=_MOST_ALONE)):
            with fences.around(_FENCED, accessor):
                await self._store.write(partial(_remove, accessors=[accessor]))

    def _next_round(self, now: int) -> int:
        """Return the time of the next round: the next expiry, at most `_LONGEST_SLEEP` from now."""
        latest, time = now + _LONGEST_SLEEP, self._store.read(tokens.next_end)
        return latest if time is None else min(max(time, now), latest)


def _spend_wrapping(tx: Transaction, accessor: str) -> None:
    """Delete a wrapping token, whose only use is to unwrap its response."""
    if tokens.wrapped(tx, accessor):
        tokens.remove(tx, accessor)


def _is_of_mount(token: Token, mount: Mount | None) -> bool:
    """Return whether the auth method of a token exists, and was not moved since the login.

    A move revokes the tokens of a mount. A batch token has no row to delete, so it names the move.
    """
    return mount is not None and token.move in ("", mount.latest_move)


def _has_parent(db: ReadSnapshot, parent: str) -> bool:
    """Return whether the parent of a token exists, or does not have to exist."""
    return not parent or is_of_task(parent) or tokens.find(db, parent) is not None


def _is_active(db: ReadSnapshot, alloc_id: str) -> bool:
    """Return whether an allocation is not terminal."""
    allocation = allocations.find(db, alloc_id)
    return allocation is not None and not allocation.client_terminal


def _remove_ended(tx: Transaction, now: int) -> bool:
    """Delete a few tokens; return whether there may be more."""
    return _remove(tx, tokens.ended(tx, now, STEP))


def _remove_of_mount(tx: Transaction, mount: str) -> bool:
    return _remove(tx, tokens.issued_by_mount(tx, mount, KeyRange(most=STEP)))


def _remove(tx: Transaction, accessors: list[str]) -> bool:
    for accessor in accessors:
        tokens.remove(tx, accessor)
    return len(accessors) == STEP


def is_within(address: str, cidrs: Iterable[str]) -> bool:
    """Return whether an address is in at least one network; an invalid network matches nothing."""
    try:
        parsed_address = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed_address, "ipv4_mapped", None) or parsed_address
    return any(mapped in network for network in _networks(cidrs))


def _networks(cidrs: Iterable[str]) -> Iterable[IPv4Network | IPv6Network]:
    for cidr in cidrs:
        try:
            network = ip_network(cidr, strict=False)
        except ValueError:
            continue
        first = getattr(network.network_address, "ipv4_mapped", None)
        if first and network.prefixlen >= _MAPPED_BITS:
            yield ip_network((first, network.prefixlen - _MAPPED_BITS))
        else:
            yield network


def _unreadable(secret: str) -> str:
    """Return why a secret is unknown, in the form of Nomad's error."""
    if len(secret) == 36 and secret.count("-") == 4:
        return "Permission denied"
    if secret.count(".") != 2:
        return (
            "failed to parse signed token: go-jose/go-jose: "
            "compact JWS format must have three parts"
        )
    return "failed to parse signed token: it was not signed here"


def _find_key(tx: Transaction, fresh: bytes) -> bytes:
    """Return the encrypted key for all hashes; if none is stored, store and return `fresh`."""
    key = secrets.find(tx, _KEY)
    if key is None:
        secrets.put(tx, _KEY, fresh)
    return key or fresh


@asynccontextmanager
async def open_tokens(
    store: Store,
    clock: Clock,
    seal: EnvelopeCipher,
    *,
    asks: bool,
    workload_of: Verify | None = None,
    lock_out: LockoutPolicy = LockoutPolicy(),  # noqa: B008  # frozen
    fences: Fences | None = None,
) -> AsyncIterator[TokenStore]:
    """Open the tokens of a store, and delete expired tokens while the block runs.

    `workload_of` verifies the identity token of a task.
    """
    key = seal.unseal(await store.write(partial(_find_key, fresh=seal.seal(new_key(), _KEY))), _KEY)
    token_store = TokenStore(
        store, clock, Keyring(key), asks=asks, workload_of=workload_of, lock_out=lock_out
    )
    async with trio.open_nursery() as nursery:
        fences = fences or Fences(clock)
        nursery.start_soon(
            fences.keep_running, "token expiry", partial(token_store.remove_ended, fences)
        )
        yield token_store
        nursery.cancel_scope.cancel()
