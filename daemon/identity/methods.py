"""All opened login methods of a daemon, with their background tasks."""

import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from secrets import SystemRandom

import msgspec
import trio

from daemon.acl.keyring import new_accessor, new_secret
from daemon.acl.seal import EnvelopeCipher
from daemon.acl.tokens import TokenStore, is_within
from daemon.clock import Clock
from daemon.config.settings import Settings
from daemon.fences import Fences
from daemon.identity import entities, groups, method_config, mounts, token_issue
from daemon.identity.client_secret_rotation import ClientSecretRotator
from daemon.identity.cloud_http import CloudHttp
from daemon.identity.credentials import AccessTokenCache
from daemon.identity.directory import DirectoryKeyCache
from daemon.identity.directory_graph import DirectoryGraph
from daemon.identity.federation import ClientAssertions
from daemon.identity.federation_refresh import FederationTokenRefresher
from daemon.identity.issuer import Issuer
from daemon.identity.jwt_verification import UnknownKey
from daemon.identity.login import LoginFlow, LoginPrincipal
from daemon.identity.login_request import LoginRequest
from daemon.identity.login_trace import LoginTrace
from daemon.identity.resource_manager import ResourceManager
from daemon.text.request_fields import RequestFields
from storage.errors import Denied, Invalid, LoginRefused, Refused, UnknownToken
from storage.queries import mounts as stored_mounts
from storage.records.acl import Token, TokenKind
from storage.records.identity import Entity, LoginRole, Mount
from storage.store import Store
from storage.writer import Transaction

log = logging.getLogger("steward.identity")

_VERBOSE = "CLOUD_SDK_LOG_LEVEL"


class LoginResult(msgspec.Struct, frozen=True):
    """The token of a login, the secret and the owner of the token, and warnings for the caller."""

    secret: str
    token: Token
    entity: Entity
    identity_policies: Sequence[str]  # policies of the entity and its groups
    warnings: Sequence[str]


class LoginMethods:
    """The login methods. Made by `open_methods`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        seal: EnvelopeCipher,
        tokens: TokenStore,
        ids: Iterator[str],
        login: LoginFlow,
        credentials: AccessTokenCache,
        directories: DirectoryKeyCache,
        rotations: ClientSecretRotator,
        warm: FederationTokenRefresher,
        surroundings: tuple[Settings, Mapping[str, str]],
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

    async def configure(self, mount: Mount, fields: RequestFields) -> list[str]:
        """Create or change the configuration of a mount; return warnings for the caller."""
        warnings = await method_config.write(
            self._store, self._seal, mount, fields, self._surroundings
        )
        self.forget(mount.accessor)
        return warnings

    async def unconfigure(self, mount: Mount) -> None:
        """Remove the configuration of a mount."""
        await method_config.remove(self._store, mount)
        self.forget(mount.accessor)

    def forget(self, accessor: str) -> None:
        """Drop the cloud data of a mount that was changed or deleted."""
        self.credentials.forget(accessor)
        self.warm.forget(accessor)
        self._login.cloud.forget(accessor)

    def token_ages(self) -> dict[str, float]:
        """Return the age of the oldest access token of each mount, in seconds.

        While the renewal for a federated mount fails, the last successful renewal counts, even if
        that token has expired.
        """
        ages = self.credentials.ages()
        for path, age in self.warm.failing_ages().items():
            ages[path] = max(ages.get(path, 0.0), age)
        return ages

    async def login(
        self, mount: Mount, request: LoginRequest, address: str, client_key: str = ""
    ) -> LoginResult:
        """Verify a login and return its token.

        A forged token counts as a failure of `client_key`: a user of this host, or by default the
        address. Raises `Invalid`, `Refused`, `UnknownToken` or `TooOften`.
        """
        role = self._role(mount, request, address)
        examination = LoginTrace()
        try:
            with trio.fail_after(self._surroundings[0].cloud_login_seconds):
                proven = await self._login.authenticate(mount, role, request, examination)
        except trio.TooSlowError:
            raise LoginRefused("the cloud did not answer in time", "the cloud is slow") from None
        except Refused as error:
            reason = examination.broken() or str(error)
            log_values = (mount.path, request.role, str(error), reason)
            log.warning("a login at %s as %r was refused: %r; %r", *log_values)
            if isinstance(error, UnknownKey):  # a claim that a role does not bind is not a forgery
                self._tokens.record_failure(
                    client_key or address, f"{mount.accessor}/{request.role.lower()}"
                )
            raise LoginRefused(str(error), f"role {request.role}: {reason}") from error
        return await self._issue(proven)

    def _role(self, mount: Mount, request: LoginRequest, address: str) -> LoginRole:
        role = self._login.role(mount, request)
        if role.token_bound_cidrs and not is_within(address, role.token_bound_cidrs):
            raise UnknownToken
        return role

    async def explain(self, mount: Mount, request: LoginRequest, address: str) -> LoginTrace:
        """Return the checks of a login, without issuing a token.

        Raises `Invalid` for an incomplete request.
        """
        role = self._login.role(mount, request)
        examination = LoginTrace()
        try:
            with examination.rule("token_bound_cidrs", "address", address):
                self._role(mount, request, address)
            with trio.fail_after(self._surroundings[0].cloud_login_seconds):
                proven = await self._login.authenticate(mount, role, request, examination)
            self._would_issue(proven, examination)
        except (Refused, Denied, Invalid):
            if not examination.broken():  # the request itself is wrong
                raise
        except trio.TooSlowError:
            with examination.rule("the cloud answers in time", "the cloud"):
                raise Refused("the cloud did not answer in time") from None
        return examination

    def _would_issue(self, proven: LoginPrincipal, examination: LoginTrace) -> None:
        """Check whether a verified login would get a token. Raises `Invalid` or `Denied`."""
        names = " ".join(proven.role.token_policies)
        with examination.rule("the role's policies can be granted", "token_policies", names):
            token_issue.token_policies(proven.role)
        with examination.rule(
            "the token's uses can be counted", "token_num_uses", str(proven.role.token_num_uses)
        ):
            token_issue.check_uses(proven.role, proven.mount)
        mount, principal = proven.mount.accessor, proven.principal
        with examination.rule("the entity is not disabled", "oid", principal):
            self._store.read(lambda db: entities.find_entity(db, mount, principal))

    async def _issue(self, proven: LoginPrincipal) -> LoginResult:
        now = self._clock.now()
        span = token_issue.token_ttl(proven.role, proven.mount)
        token = token_issue.build_token(proven, span, accessor=new_accessor(), now=now)
        alias = entities.alias_of(
            proven.mount.accessor,
            proven.principal,
            proven.alias_metadata,
            (next(self._ids), next(self._ids)),
            now,
        )
        secret = new_secret()

        def write(tx: Transaction) -> LoginResult:
            # The mount may have been disabled while the cloud was asked.
            if stored_mounts.by_accessor(tx, proven.mount.accessor) is None:
                raise UnknownToken
            entity = entities.record_login(tx, alias, proven.groups)
            complete = msgspec.structs.replace(token, entity_id=entity.id)
            if complete.kind is TokenKind.SERVICE:
                complete = self._tokens.add(tx, complete, secret)
            policy_names = groups.identity_policies(tx, entity.id)
            return LoginResult(secret, complete, entity, policy_names, span.warnings)

        done = await self._store.write(write)
        if done.token.kind is TokenKind.SERVICE:
            return done
        issued = await self._tokens.issue(done.token)
        return msgspec.structs.replace(done, secret=issued.secret, token=issued.token)


@asynccontextmanager
async def open_methods(
    store: Store,
    clock: Clock,
    seal: EnvelopeCipher,
    tokens: TokenStore,
    issuer: Issuer,
    ids: Iterator[str],
    config: Settings,
    fences: Fences | None = None,
) -> AsyncIterator[LoginMethods]:
    """Open the login methods, and refresh their keys and credentials while the block runs."""
    fences = fences or Fences(clock)
    environment = dict(os.environ)
    verbose = environment.get(_VERBOSE, "").upper() == "DEBUG"
    transport = CloudHttp(SystemRandom().random, verbose=verbose)
    credentials = AccessTokenCache(
        transport, clock, ClientAssertions(store, clock, issuer, config).assertion, fences
    )
    directories = DirectoryKeyCache(store, transport, clock, config, fences)
    surroundings = (config, environment)
    cloud = ResourceManager(credentials, clock, config.cloud_lookup_seconds)
    graph = DirectoryGraph(credentials)
    login = LoginFlow(store, clock, seal, directories, cloud, graph, surroundings)
    rotations = ClientSecretRotator(
        store, clock, seal, ids, credentials, graph, login.client, fences
    )
    warm = FederationTokenRefresher(store, clock, seal, credentials, login.client, fences)
    warm.restore()
    await mounts.finish_disabling(store, tokens)
    try:
        async with trio.open_nursery() as nursery:
            for name, loop in (
                ("cloud tokens", credentials.renew),
                ("directory keys", directories.renew),
                ("client secret rotation", rotations.run),
                ("warm cloud tokens", warm.run),
            ):
                nursery.start_soon(fences.keep_running, name, loop)
            yield LoginMethods(
                *(store, clock, seal, tokens, ids, login),
                *(credentials, directories, rotations, warm, surroundings),
            )
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(1):
            await transport.close()
