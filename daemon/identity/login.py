"""Verification of a login: the request, the token, the claims, and the resource.

The order of checks and the texts are Vault's, because clients derive the error from them. The log,
the audit log and `explain` name the broken rule.
"""

import logging
import re
from collections.abc import Mapping

import msgspec

from daemon.acl.seal import EnvelopeCipher
from daemon.clock import Clock
from daemon.config.settings import Settings
from daemon.identity import jwt_verification, method_config
from daemon.identity.bindings import check_claims
from daemon.identity.cloud_endpoints import CloudSettings, complete
from daemon.identity.credentials import CloudClient
from daemon.identity.directory import DirectoryKeyCache
from daemon.identity.directory_graph import DirectoryGraph
from daemon.identity.jwt_verification import Claims
from daemon.identity.login_request import FIELDS, LoginRequest
from daemon.identity.login_trace import LoginTrace
from daemon.identity.resource_check import inspect
from daemon.identity.resource_manager import ResourceManager
from daemon.text.go_format import quote
from daemon.text.request_fields import RequestFields
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


class LoginPrincipal(msgspec.Struct, frozen=True, kw_only=True):
    """A verified login: its mount, role and principal, and metadata."""

    mount: Mount
    role: LoginRole
    principal: str
    groups: list[str]
    alias_metadata: Mapping[str, str]
    metadata: Mapping[str, str]  # metadata of the token

    @property
    def display_name(self) -> str:
        """Return the display name of the token."""
        return f"{self.mount.path.strip('/').replace('/', '-')}-{self.principal}"


def request_of(fields: RequestFields) -> LoginRequest:
    """Return the fields of a login. Raises `Malformed` with Vault's error text."""
    try:
        return LoginRequest(**{name: fields.text(name) for name in FIELDS})
    except Malformed as error:
        raise Malformed(f"Field validation failed: {error}") from error


class LoginFlow:
    """Verification of logins."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        seal: EnvelopeCipher,
        directories: DirectoryKeyCache,
        cloud: ResourceManager,
        graph: DirectoryGraph,
        surroundings: tuple[Settings, Mapping[str, str]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._seal = seal
        self._directories = directories
        self._graph = graph
        self.cloud = cloud
        self._surroundings = surroundings

    def role(self, mount: Mount, request: LoginRequest) -> LoginRole:
        """Return the role of a request. Raises `Invalid` if the request is incomplete."""
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

    async def authenticate(
        self, mount: Mount, role: LoginRole, request: LoginRequest, examination: LoginTrace
    ) -> LoginPrincipal:
        """Return the identity in a request. Raises `Invalid` or `Refused`."""
        _check_syntax(request)
        now = self._clock.now()
        with examination.rule("the method is configured", "config"):
            settings = self.settings(mount)
        with examination.rule("the token can be read", "jwt"):
            token = jwt_verification.parse_jwt(request.jwt)
        with examination.rule("the directory signed the token", "kid", token.kid):
            directory = await self._directories.verify(mount, settings, token)
        with examination.rule("issuer, audience, time", "iss, aud, exp, nbf", settings.resource):
            jwt_verification.check_standard(
                token,
                issuer=directory.issuer,
                audience=settings.resource,
                now=now,
                leeway=settings.config.clock_leeway,
            )
            claims = jwt_verification.read_claims(token)
        if _wants_groups(role, claims, settings.config):
            claims = await self._with_groups(self.client(mount), claims, examination)
        examination.require(check_claims(role, claims, now, settings.config.clock_leeway))
        if role.asks_resources:
            client = self.client(mount)
            await inspect(self.cloud, client, role, claims, request, examination)
        with examination.rule("the token has an object ID", "oid", claims.oid or ""):
            return _authenticated(mount, role, claims, request)

    def settings(self, mount: Mount) -> CloudSettings:
        """Return the settings of a mount, with defaults. Raises `Refused`."""
        config = self._store.read(lambda db: identity.config(db, mount.accessor))
        return complete(config, *self._surroundings)

    def client(self, mount: Mount) -> CloudClient:
        """Return the daemon's cloud client for a mount. Raises `Refused`."""
        secret = self._store.read(lambda db: method_config.client_secret(db, self._seal, mount))
        return CloudClient(mount=mount, settings=self.settings(mount), secret=secret)

    async def _with_groups(
        self, client: CloudClient, claims: Claims, examination: LoginTrace
    ) -> Claims:
        """Return the claims, completed with the groups that did not fit into the token."""
        oid = claims.oid or ""
        with examination.rule("the groups can be looked up", "the directory's graph", oid):
            groups = await self._graph.groups_of(client, oid)
        return msgspec.structs.replace(claims, groups=groups)


def _wants_groups(role: LoginRole, claims: Claims, config: MethodConfig) -> bool:
    """Return whether the login must query the directory for the groups of a principal."""
    is_asked = bool(role.bound_group_ids) and config.look_up_groups
    return is_asked and claims.names_groups_elsewhere and bool(claims.oid)


def _check_syntax(request: LoginRequest) -> None:
    for field, name, pattern in _SYNTAX:
        text: str = getattr(request, field)
        if text and not pattern.fullmatch(text):
            raise Invalid(f"invalid {name} {quote(text)}")


def _authenticated(
    mount: Mount, role: LoginRole, claims: Claims, request: LoginRequest
) -> LoginPrincipal:
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
    return LoginPrincipal(
        mount=mount,
        role=role,
        principal=claims.oid,
        groups=[group for group in claims.groups or () if group],
        alias_metadata=metadata,
        metadata={**metadata, "role": request.role},
    )
