"""All login methods of a daemon, opened: what can be asked of them, and the tasks behind them."""

import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from secrets import SystemRandom

import msgspec
import trio

from daemon.acl.keyring import new_accessor, new_secret
from daemon.acl.seal import Seal
from daemon.acl.tokens import Tokens, is_within
from daemon.clock import Clock
from daemon.config import Config
from daemon.fields import Fields
from daemon.identity import entities, groups, issue, method, mounts
from daemon.identity.cloud import ResourceManager
from daemon.identity.credentials import Credentials
from daemon.identity.directory import Directories
from daemon.identity.examination import Examination
from daemon.identity.federation import Vouching
from daemon.identity.graph import Graph
from daemon.identity.issuer import Issuer
from daemon.identity.jwt import UnknownKey
from daemon.identity.login import Login, Proven
from daemon.identity.request import LoginRequest
from daemon.identity.rotation import Rotations
from daemon.identity.transport import Transport
from daemon.identity.warm import Warm
from storage.errors import Denied, Invalid, LoginRefused, Refused, UnknownToken
from storage.queries import mounts as stored_mounts
from storage.records.acl import Token, TokenKind
from storage.records.identity import Entity, LoginRole, Mount
from storage.store import Store
from storage.writer import Transaction

log = logging.getLogger("steward.identity")

_VERBOSE = "CLOUD_SDK_LOG_LEVEL"


class LoggedIn(msgspec.Struct, frozen=True):
    """The token of a login with its secret, whose it is, and what the caller should know."""

    secret: str
    token: Token
    entity: Entity
    identity_policies: Sequence[str]  # of the entity and its groups
    warnings: Sequence[str]


class Methods:
    """The login methods. Made by `open_methods`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        seal: Seal,
        tokens: Tokens,
        ids: Iterator[str],
        login: Login,
        credentials: Credentials,
        directories: Directories,
        rotations: Rotations,
        warm: Warm,
        surroundings: tuple[Config, Mapping[str, str]],
    ) -> None:
        self.credentials = credentials
        self.directories = directories
        self.rotations = rotations
        self.warm = warm
        self._store = store
        self._clock = clock
        self._seal = seal
        self._tokens = tokens
        self._ids = ids
        self._login = login
        self._surroundings = surroundings

    async def configure(self, mount: Mount, fields: Fields) -> list[str]:
        """Create or change the configuration of a mount; return what the caller should know."""
        warnings = await method.write(self._store, self._seal, mount, fields, self._surroundings)
        self.forget(mount)
        return warnings

    async def unconfigure(self, mount: Mount) -> None:
        """Remove the configuration of a mount."""
        await method.remove(self._store, mount)
        self.forget(mount)

    def forget(self, mount: Mount) -> None:
        """Let go of what the cloud gave a mount: it is set up otherwise now, or gone."""
        self.credentials.forget(mount.accessor)
        self._login.cloud.forget(mount.accessor)

    async def login(self, mount: Mount, request: LoginRequest, address: str) -> LoggedIn:
        """Return a token for whoever asks, if they are who the role asks for.

        Raises `Invalid`, `Refused`, `UnknownToken` or `TooOften`.
        """
        role = self._role(mount, request, address)
        examination = Examination()
        try:
            with trio.fail_after(self._surroundings[0].cloud_login_seconds):
                proven = await self._login.prove(mount, role, request, examination)
        except trio.TooSlowError:
            raise LoginRefused("the cloud did not answer in time", "the cloud is slow") from None
        except Refused as error:
            reason = examination.broken() or str(error)
            told = (mount.path, request.role, str(error), reason)
            log.warning("a login at %s as %r was refused: %r; %r", *told)
            if isinstance(error, UnknownKey):  # a claim that a role does not bind is no forgery
                self._tokens.note_failure(address, f"{mount.accessor}/{request.role.lower()}")
            raise LoginRefused(str(error), f"role {request.role}: {reason}") from error
        return await self._issue(proven)

    def _role(self, mount: Mount, request: LoginRequest, address: str) -> LoginRole:
        role = self._login.role(mount, request)
        if role.token_bound_cidrs and not is_within(address, role.token_bound_cidrs):
            raise UnknownToken
        return role

    async def explain(self, mount: Mount, request: LoginRequest, address: str) -> Examination:
        """Return what a login would look at, without letting anybody in.

        Raises `Invalid` where the request itself is incomplete.
        """
        role = self._login.role(mount, request)
        examination = Examination()
        try:
            with examination.rule("token_bound_cidrs", "address", address):
                self._role(mount, request, address)
            with trio.fail_after(self._surroundings[0].cloud_login_seconds):
                proven = await self._login.prove(mount, role, request, examination)
            self._would_issue(proven, examination)
        except (Refused, Denied, Invalid):
            if not examination.broken():  # no rule, but the request itself is wrong
                raise
        except trio.TooSlowError:
            with examination.rule("the cloud answers in time", "the cloud"):
                raise Refused("the cloud did not answer in time") from None
        return examination

    def _would_issue(self, proven: Proven, examination: Examination) -> None:
        """Examine what a login meets when it is proven. Raises `Invalid` or `Denied`."""
        names = " ".join(proven.role.token_policies)
        with examination.rule("the token may have its policies", "token_policies", names):
            issue.policies_of(proven.role)
        mount, principal = proven.mount.accessor, proven.principal
        with examination.rule("the entity is not disabled", "oid", principal):
            self._store.read(lambda db: entities.known(db, mount, principal))

    async def _issue(self, proven: Proven) -> LoggedIn:
        now = self._clock.now()
        span = issue.lease_of(proven.role, proven.mount)
        token = issue.token_of(proven, span, accessor=new_accessor(), now=now)
        alias = entities.alias_of(
            proven.mount.accessor,
            proven.principal,
            proven.alias_metadata,
            (next(self._ids), next(self._ids)),
            now,
        )
        secret = new_secret()

        def write(tx: Transaction) -> LoggedIn:
            # The mount may have been disabled while the cloud was asked.
            if stored_mounts.by_accessor(tx, proven.mount.accessor) is None:
                raise UnknownToken
            entity = entities.note_login(tx, alias, proven.groups)
            whole = msgspec.structs.replace(token, entity_id=entity.id)
            if whole.kind is TokenKind.SERVICE:
                whole = self._tokens.add(tx, whole, secret)
            given = groups.identity_policies(tx, entity.id)
            return LoggedIn(secret, whole, entity, given, span.warnings)

        done = await self._store.write(write)
        if done.token.kind is TokenKind.SERVICE:
            return done
        issued = await self._tokens.issue(done.token)
        return msgspec.structs.replace(done, secret=issued.secret, token=issued.token)


@asynccontextmanager
async def open_methods(
    store: Store,
    clock: Clock,
    seal: Seal,
    tokens: Tokens,
    issuer: Issuer,
    ids: Iterator[str],
    config: Config,
) -> AsyncIterator[Methods]:
    """Open the login methods; what they know of clouds is kept fresh while the block runs."""
    environment = dict(os.environ)
    verbose = environment.get(_VERBOSE, "").upper() == "DEBUG"
    transport = Transport(SystemRandom().random, verbose=verbose)
    credentials = Credentials(transport, clock, Vouching(store, clock, issuer, config).assertion)
    directories = Directories(store, transport, clock, config)
    surroundings = (config, environment)
    cloud = ResourceManager(credentials, clock, config.cloud_lookup_seconds)
    graph = Graph(credentials)
    login = Login(store, clock, seal, directories, cloud, graph, surroundings)
    rotations = Rotations(store, clock, seal, ids, credentials, graph, login.client)
    warm = Warm(store, clock, seal, credentials, login.client)
    warm.restore()
    await mounts.finish_disabling(store, tokens)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(credentials.renew)
            nursery.start_soon(directories.renew)
            nursery.start_soon(rotations.tend)
            nursery.start_soon(warm.tend)
            yield Methods(
                *(store, clock, seal, tokens, ids, login),
                *(credentials, directories, rotations, warm, surroundings),
            )
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(1):
            await transport.close()
