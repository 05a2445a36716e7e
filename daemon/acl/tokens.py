"""Tokens: who asks, by the secret that they show; making them, and ending them.

A change of a policy or of a token is in force for the next request, because who asks is remembered
only until anything at all is written; what rules mean, as long as no policy changes. Tokens whose
time is over are refused from that moment on; their rows go in small steps afterwards, so that ten
thousand that end in the same second hold up nobody.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import msgspec
import trio

from daemon.acl.builtin import NOBODY, UNASKED, operator_token
from daemon.acl.check import Caller
from daemon.acl.failures import Failures, LockOut
from daemon.acl.grant import Grant
from daemon.acl.keyring import Keyring, new_accessor, new_key, new_secret
from daemon.acl.known import Callers, Grants
from daemon.acl.seal import Seal
from daemon.acl.workloads import grant_of, token_of
from daemon.clock import Clock
from storage.errors import Malformed, TooOften, UnknownToken, UnusableToken
from storage.queries import allocations, entities, mounts, secrets, tokens
from storage.readers import Snapshot
from storage.records.acl import SPENT, WRAPPING, Token, TokenKind
from storage.records.base import SECOND
from storage.records.workload import Workload
from storage.store import Store, unless_full
from storage.writer import Transaction

log = logging.getLogger("steward.acl")

STEP = 50  # tokens that one write removes: a few milliseconds
_LONGEST_SLEEP = 60 * SECOND  # the wall clock may be set meanwhile
_NEVER = 2**63
_KEY = "acl/token-key"  # where it stands among the secrets
_EVERYTHING = Grant((), everything=True)
STRANGER = Caller(NOBODY, Grant(()))  # who is not known yet, and may do nothing


# What an identity token says; raises `UnknownToken` for one that is not valid.
Verify = Callable[[str], Workload]


class Issued(msgspec.Struct, frozen=True):
    """A new token with its secret, which is known only now."""

    secret: str
    token: Token


class Tokens:
    """All tokens. Made by `open_tokens`. With `asks` off, everybody may do everything."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        keyring: Keyring,
        *,
        asks: bool,
        workload_of: Verify | None = None,
        lock_out: LockOut = LockOut(),  # noqa: B008  # frozen
    ) -> None:
        self._workload_of = workload_of
        self._store = store
        self._clock = clock
        self._keyring = keyring
        self._grants = Grants()
        self._callers = Callers()
        self.failures = Failures(lock_out)
        self._sooner = trio.Event()
        self._looks_at = _NEVER  # when the task that removes tokens looks again
        self.asks = asks

    # ---- who asks

    def resolve(self, secret: str, address: str = "") -> Caller:
        """Return who shows this secret from this address; no secret is the anonymous token.

        Raises `UnknownToken`.
        """
        if not (secret or self.asks):
            return Caller(UNASKED, _EVERYTHING)
        shown, moment = (self._keyring.hash(secret), address), self._store.moment
        known = self._callers.find(shown, moment)
        if known is not None and not known.token.has_ended(self._clock.now()):
            return known
        caller = self._store.read(lambda db: self._resolve(db, secret, address))
        if caller.own_job is None:  # what a task shows ends without a change of the store
            self._callers.keep(shown, moment, caller)
        return caller

    async def authenticate(
        self, secret: str, address: str = "", *, operator: int | None = None
    ) -> Caller:
        """Return who shows this secret, and count it as a use.

        `operator` is a user of this machine who may do everything without a secret. Raises
        `UnknownToken`, or `TooOften` when that has happened too often.
        """
        if operator is not None and not secret and self.asks:
            return Caller(operator_token(operator), _EVERYTHING)
        try:
            caller = self.resolve(secret, address)
        except UnusableToken:
            raise
        except UnknownToken:
            self.note_failure(address)
            raise
        if caller.token.policies == (WRAPPING,):
            await self._store.write(lambda tx: _spend_wrapping(tx, caller.token.accessor))
        if caller.token.uses_left is None:
            return caller
        return await self._store.write(lambda tx: self._use(tx, secret, address))

    def note_failure(self, address: str, role: str = "") -> None:
        """Count one more forged or unknown credential. Raises `TooOften`.

        Call it after the check has failed: a valid credential always passes.
        """
        now = self._clock.now()
        too_many = self.failures.are_too_many(address, now, role)
        left = -(-self.failures.locked_for(address, now, role) // SECOND)
        if left and not too_many:
            log.warning("%s is locked out for %s s: too many refused credentials", address, left)
        if too_many:
            told = f"wrong credentials of {address} are refused after too many of them"
            later = f"try again in {left} s" if left else "wait a while"
            raise TooOften(f"{told}: {later}") from None

    def _use(self, tx: Transaction, secret: str, address: str) -> Caller:
        caller = self._resolve(tx, secret, address)  # another request may have been the last
        left = caller.token.uses_left
        if left is None:
            return caller
        tokens.spend(tx, caller.token.accessor)
        spent = msgspec.structs.replace(caller.token, uses_left=left - 1 or SPENT)
        return Caller(spent, caller.grant)

    def _resolve(self, db: Snapshot, secret: str, address: str) -> Caller:
        token = self.find(db, secret) if secret else None
        if not self.asks:
            return Caller(token or UNASKED, _EVERYTHING)
        if not secret:
            return self.nobody(db)
        if token is None:
            return self._task(db, secret)
        if token.bound_cidrs and not is_within(address, token.bound_cidrs):
            raise UnusableToken
        return self.caller(db, token)

    def nobody(self, db: Snapshot) -> Caller:
        """Return who shows no token."""
        return Caller(NOBODY, self._grants.of(db, NOBODY))

    def _task(self, db: Snapshot, secret: str) -> Caller:
        """Return the task whose identity token this is. Raises `UnknownToken`."""
        if self._workload_of is None or secret.count(".") != 2:
            raise UnknownToken(_unreadable(secret))
        workload = self._workload_of(secret)
        allocation = allocations.find(db, workload.nomad_allocation_id)
        if allocation is None or allocation.client_terminal:
            raise UnusableToken("failed to parse signed token: allocation is terminal")
        own_job = (workload.nomad_namespace, allocation.job_id)
        return Caller(token_of(workload), grant_of(db, workload), own_job)

    def caller(self, db: Snapshot, token: Token) -> Caller:
        """Return the holder of a token with all that its policies allow.

        Raises `UnusableToken` when what the token hangs on is gone.
        """
        if token.mount and mounts.by_accessor(db, token.mount) is None:
            raise UnusableToken
        if token.allocation and not _lives(db, token.allocation):
            raise UnusableToken
        if token.kind is TokenKind.BATCH and token.parent and not tokens.find(db, token.parent):
            raise UnusableToken
        entity = entities.find(db, token.entity_id) if token.entity_id else None
        if token.entity_id and (entity is None or entity.is_disabled):
            raise UnusableToken
        if token.is_management:
            return Caller(token, _EVERYTHING)
        return Caller(token, self._grants.of(db, token, entity))

    def find(self, db: Snapshot, secret: str) -> Token | None:
        """Return the token in force that has this secret."""
        token = self._keyring.batch_token(secret) or tokens.of_secret(
            db, self._keyring.hash(secret)
        )
        return token if token and not token.has_ended(self._clock.now()) else None

    # ---- making

    async def issue(self, token: Token, secret: str = "") -> Issued:
        """Make a token. What it lacks of accessor and secret is made up.

        A batch token is not stored: its secret is all there is of it.
        """
        whole = msgspec.structs.replace(token, accessor=token.accessor or new_accessor())
        if token.kind is TokenKind.BATCH:
            bare = msgspec.structs.replace(token, accessor="")
            return Issued(self._keyring.batch_secret(bare), bare)
        chosen = secret or new_secret()
        stored = await self._store.write(lambda tx: self.add(tx, whole, chosen))
        return Issued(chosen, stored)

    def add(self, tx: Transaction, token: Token, secret: str) -> Token:
        """Store a token within a write. Raises `Malformed` when the secret is taken."""
        hashed = self._keyring.hash(secret)
        if tokens.of_secret(tx, hashed):
            raise Malformed("cannot create a token with a duplicate ID")
        self.note_end(token.expires_at)
        return tokens.add(tx, token, hashed)

    def note_end(self, time: int | None) -> None:
        """Have the task that removes tokens look in time for one that ends then."""
        if time is not None and time < self._looks_at:
            self._sooner.set()

    # ---- ending

    async def revoke(self, secret: str) -> None:
        """Remove the token that has this secret, and those made with it.

        Nothing is there to be removed of a batch token, which ends with its time.
        """
        hashed = self._keyring.hash(secret)

        def remove(tx: Transaction) -> None:
            if token := tokens.of_secret(tx, hashed):
                tokens.remove(tx, token.accessor)

        await self._store.write(remove)

    async def revoke_mount(self, mount: str) -> None:
        """Remove all tokens that a login method issued, in small steps."""
        while await self._store.write(partial(_remove_of_mount, mount=mount)):
            pass

    async def remove_ended(self) -> None:
        """Remove tokens when their time is over, one after another, for ever."""
        while True:
            # From here on every end that is noted counts: what is read below may lack its token.
            self._sooner, self._looks_at = trio.Event(), _NEVER
            now = self._clock.now()
            async with unless_full("tokens that have ended are not removed"):
                while await self._store.write(partial(_remove_ended, now=now)):
                    pass
            self._looks_at = self._next_look(now)
            with trio.move_on_after((self._looks_at - now) / SECOND):
                await self._sooner.wait()

    def _next_look(self, now: int) -> int:
        """Return when the next token ends, or when it is to be looked for again."""
        latest, time = now + _LONGEST_SLEEP, self._store.read(tokens.next_end)
        return latest if time is None else min(max(time, now), latest)


def _spend_wrapping(tx: Transaction, accessor: str) -> None:
    """Remove a token that holds an answer: it is good for taking the answer, and nothing else."""
    if tokens.wrapped(tx, accessor):
        tokens.remove(tx, accessor)


def _lives(db: Snapshot, alloc_id: str) -> bool:
    """Tell whether an allocation has not ended."""
    allocation = allocations.find(db, alloc_id)
    return allocation is not None and not allocation.client_terminal


def _remove_ended(tx: Transaction, now: int) -> bool:
    """Remove a few tokens; tell whether there may be more."""
    return _remove(tx, tokens.ended(tx, now, STEP))


def _remove_of_mount(tx: Transaction, mount: str) -> bool:
    return _remove(tx, tokens.of_mount(tx, mount, STEP))


def _remove(tx: Transaction, accessors: list[str]) -> bool:
    for accessor in accessors:
        tokens.remove(tx, accessor)
    return len(accessors) == STEP


def is_within(address: str, cidrs: Iterable[str]) -> bool:
    """Tell whether an address lies in one of these networks; a network that is none holds nothing."""
    try:
        asked = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(asked, "ipv4_mapped", None) or asked
    return any(mapped in network for network in _networks(cidrs))


def _networks(cidrs: Iterable[str]) -> Iterable[IPv4Network | IPv6Network]:
    for cidr in cidrs:
        try:
            yield ip_network(cidr, strict=False)
        except ValueError:
            continue


def _unreadable(secret: str) -> str:
    """Return why a secret is nobody's, as far as the peer's clients are told."""
    if len(secret) == 36 and secret.count("-") == 4:
        return "Permission denied"
    if secret.count(".") != 2:
        return (
            "failed to parse signed token: go-jose/go-jose: "
            "compact JWS format must have three parts"
        )
    return "failed to parse signed token: it was not signed here"


def _find_key(tx: Transaction, fresh: bytes) -> bytes:
    """Return the sealed key of all hashes; a new store gets a fresh one."""
    found = secrets.find(tx, _KEY)
    if found is None:
        secrets.put(tx, _KEY, fresh)
    return found or fresh


@asynccontextmanager
async def open_tokens(
    store: Store,
    clock: Clock,
    seal: Seal,
    *,
    asks: bool,
    workload_of: Verify | None = None,
    lock_out: LockOut = LockOut(),  # noqa: B008  # frozen
) -> AsyncIterator[Tokens]:
    """Open the tokens of a store, and remove those that end while the block runs.

    `workload_of` checks the identity token of a task.
    """
    key = seal.unseal(await store.write(partial(_find_key, fresh=seal.seal(new_key(), _KEY))), _KEY)
    opened = Tokens(
        store, clock, Keyring(key), asks=asks, workload_of=workload_of, lock_out=lock_out
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(opened.remove_ended)
        yield opened
        nursery.cancel_scope.cancel()
