"""A login, top to bottom: request, token, claims, resource, and then a token of ours.

The order of checks and their texts are the peer's, because clients tell by them what is wrong;
which rule was broken is in the log, in the audit, and in what `explain` shows.
"""

import logging
import re
from collections.abc import Mapping

import msgspec

from daemon.acl.seal import Seal
from daemon.clock import Clock
from daemon.config import Config
from daemon.fields import Fields
from daemon.identity import jwt, method
from daemon.identity.bindings import of_claims
from daemon.identity.cloud import ResourceManager
from daemon.identity.credentials import Client
from daemon.identity.directory import Directories
from daemon.identity.examination import Examination
from daemon.identity.graph import Graph
from daemon.identity.inspection import inspect
from daemon.identity.jwt import Claims
from daemon.identity.request import FIELDS, LoginRequest
from daemon.identity.settings import Settings, complete
from daemon.jobspec.gotext import quote
from storage.errors import Invalid, Malformed, Refused
from storage.queries import identity
from storage.records.identity import LoginRole, MethodConfig, Mount
from storage.store import Store

log = logging.getLogger("steward.identity")

_GUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_GROUP = re.compile(r"[\w.()-]*[\w()-]")
_MACHINE = re.compile(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9_])?")
_SYNTAX = (
    ("subscription_id", "subscription id", _GUID),
    ("resource_group_name", "resource group name", _GROUP),
    ("vm_name", "vm name", _MACHINE),
    ("vmss_name", "vmss_name", _MACHINE),
)


class Proven(msgspec.Struct, frozen=True, kw_only=True):
    """Who has logged in: by which mount and role, as which principal, and what is noted of it."""

    mount: Mount
    role: LoginRole
    principal: str
    groups: list[str]
    alias_metadata: Mapping[str, str]
    metadata: Mapping[str, str]  # of the token

    @property
    def display_name(self) -> str:
        """Return how people call the holder of the token."""
        return f"{self.mount.path.strip('/').replace('/', '-')}-{self.principal}"


def request_of(fields: Fields) -> LoginRequest:
    """Return what somebody who logs in says. Raises `Malformed` with the peer's text."""
    try:
        return LoginRequest(**{name: fields.text(name) for name in FIELDS})
    except Malformed as error:
        raise Malformed(f"Field validation failed: {error}") from error


class Login:
    """Finds out who somebody is."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        seal: Seal,
        directories: Directories,
        cloud: ResourceManager,
        graph: Graph,
        surroundings: tuple[Config, Mapping[str, str]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._seal = seal
        self._directories = directories
        self._graph = graph
        self.cloud = cloud
        self._surroundings = surroundings

    def role(self, mount: Mount, request: LoginRequest) -> LoginRole:
        """Return the role of a request. Raises `Invalid` where the request is incomplete."""
        if not request.jwt:
            raise Invalid("jwt is required")
        if not request.role:
            raise Invalid("role is required")
        if ".." in request.role:
            raise Invalid("relative paths not supported")
        name = request.role.lower()
        role = self._store.read(lambda db: identity.role(db, mount.accessor, name))
        if role is None:
            raise Invalid(f"invalid role name {quote(request.role)}")
        return role

    async def prove(
        self, mount: Mount, role: LoginRole, request: LoginRequest, examination: Examination
    ) -> Proven:
        """Return who a request is from. Raises `Invalid` or `Refused`."""
        _check_syntax(request)
        now = self._clock.now()
        with examination.rule("the method is configured", "config"):
            settings = self.settings(mount)
        with examination.rule("the token can be read", "jwt"):
            token = jwt.take_apart(request.jwt)
        with examination.rule("the directory signed it", "kid", token.kid):
            directory = await self._directories.verify(mount, settings, token)
        with examination.rule("issuer, audience, time", "iss, aud, exp, nbf", settings.resource):
            jwt.check_standard(
                token,
                issuer=directory.issuer,
                audience=settings.resource,
                now=now,
                leeway=settings.config.clock_leeway,
            )
            claims = jwt.claims_of(token)
        if _wants_groups(role, claims, settings.config):
            claims = await self._with_groups(self.client(mount), claims, examination)
        examination.require(of_claims(role, claims, now, settings.config.clock_leeway))
        if role.asks_resources:
            client = self.client(mount)
            await inspect(self.cloud, client, role, claims, request, examination)
        with examination.rule("the token names its holder", "oid", claims.oid or ""):
            return _proven(mount, role, claims, request)

    def settings(self, mount: Mount) -> Settings:
        """Return how a mount is set up, with what it leaves open. Raises `Refused`."""
        config = self._store.read(lambda db: identity.config(db, mount.accessor))
        return complete(config, *self._surroundings)

    def client(self, mount: Mount) -> Client:
        """Return as whom the daemon asks the cloud for a mount. Raises `Refused`."""
        secret = self._store.read(lambda db: method.client_secret(db, self._seal, mount))
        return Client(mount=mount, settings=self.settings(mount), secret=secret)

    async def _with_groups(
        self, client: Client, claims: Claims, examination: Examination
    ) -> Claims:
        """Return claims with the groups that did not fit into the token."""
        oid = claims.oid or ""
        with examination.rule("the groups can be looked up", "the directory's graph", oid):
            groups = await self._graph.groups_of(client, oid)
        return msgspec.structs.replace(claims, groups=groups)


def _wants_groups(role: LoginRole, claims: Claims, config: MethodConfig) -> bool:
    """Tell whether the directory is to be asked for the groups of a principal."""
    is_asked = bool(role.bound_group_ids) and config.look_up_groups
    return is_asked and claims.names_groups_elsewhere and bool(claims.oid)


def _check_syntax(request: LoginRequest) -> None:
    for field, name, pattern in _SYNTAX:
        text: str = getattr(request, field)
        if text and not pattern.fullmatch(text):
            raise Invalid(f"invalid {name} {quote(text)}")


def _proven(mount: Mount, role: LoginRole, claims: Claims, request: LoginRequest) -> Proven:
    if not claims.oid:
        raise Refused("missing name in alias")
    always = {
        "subscription_id": request.subscription_id,
        "resource_group_name": request.resource_group_name,
    }
    maybe = {
        "vm_name": request.vm_name,
        "vmss_name": request.vmss_name,
        "resource_id": request.resource_id,
        "app_id": claims.appid or "",
    }
    metadata = {**always, **{name: value for name, value in maybe.items() if value}}
    return Proven(
        mount=mount,
        role=role,
        principal=claims.oid,
        groups=[group for group in claims.groups or () if group],
        alias_metadata=metadata,
        metadata={**metadata, "role": request.role},
    )
