"""Tokens and policies in the form of the jobs API."""

import msgspec

from storage.records import durations
from storage.records.acl import JobACL, RoleLink, Token, TokenKind
from storage.records.base import Record
from storage.records.times import ZERO_TIME, rfc3339


class TokenStub(Record, frozen=True, kw_only=True):
    """A token in a listing, without secrets."""

    accessor_id: str
    name: str
    type: str
    policies: tuple[str, ...] | None
    roles: list[RoleLink] | None
    global_: bool = msgspec.field(name="Global")
    hash: str | None
    create_time: str
    expiration_time: str | None
    create_index: int
    modify_index: int


class TokenDetail(TokenStub, frozen=True, kw_only=True):
    """A token with its details; the secret is only shown to its creator or holder."""

    secret_id: str
    expiration_ttl: str


class PolicyStub(Record, frozen=True, kw_only=True):
    """A policy in a listing."""

    name: str
    description: str
    job_acl: JobACL | None
    hash: str
    create_index: int
    modify_index: int


class NamedPolicy(Record, frozen=True, kw_only=True):
    """The rules of a policy for one namespace."""

    name: str
    policy: str
    capabilities: tuple[str, ...] | None
    variables: "VariablesPolicy | None"


class PathPolicy(Record, frozen=True, kw_only=True):
    """The rules of a policy for one path of variables."""

    path_spec: str
    capabilities: tuple[str, ...]


class VariablesPolicy(Record, frozen=True, kw_only=True):
    """The rules of a policy for the variables of one namespace."""

    paths: list[PathPolicy]


class PoolPolicy(Record, frozen=True, kw_only=True):
    """The rules of a policy for one node pool or host volume."""

    name: str
    policy: str
    capabilities: tuple[str, ...] | None


class LevelPolicy(Record, frozen=True, kw_only=True):
    """The permission level of a policy for one area, such as `read` for nodes."""

    policy: str


class RulesView(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed rules of a policy."""

    agent: LevelPolicy | None = msgspec.field(name="Agent", default=None)
    extra_keys: None = msgspec.field(name="ExtraKeysHCL", default=None)
    host_volumes: list[PoolPolicy] | None = msgspec.field(name="HostVolumes", default=None)
    namespaces: list[NamedPolicy] | None = msgspec.field(name="Namespaces", default=None)
    node: LevelPolicy | None = msgspec.field(name="Node", default=None)
    node_pools: list[PoolPolicy] | None = msgspec.field(name="NodePools", default=None)
    operator: LevelPolicy | None = msgspec.field(name="Operator", default=None)
    plugin: LevelPolicy | None = msgspec.field(name="Plugin", default=None)
    quota: LevelPolicy | None = msgspec.field(name="Quota", default=None)
    raw: str = msgspec.field(name="Raw", default="")
    sentinel: None = msgspec.field(name="Sentinel", default=None)


class PolicyDetail(PolicyStub, frozen=True, kw_only=True):
    """A policy with its details."""

    rules: str
    rules_json: RulesView = msgspec.field(name="RulesJSON")


def token_stub(token: Token, digest: str | None, names: dict[str, str]) -> TokenStub:
    """Return a token in listing form; `names` are the names of its roles by ID."""
    links = [RoleLink(id=role, name=names.get(role, "")) for role in token.roles]
    return TokenStub(
        accessor_id=token.accessor,
        name=token.name,
        type="management" if token.is_management and token.create_index else "client",
        policies=None if token.is_management else (token.policies or None),
        roles=links or None,
        global_=token.is_global,
        hash=digest,
        create_time=rfc3339(token.created_at) if token.created_at else ZERO_TIME,
        expiration_time=rfc3339(token.expires_at) if token.expires_at else None,
        create_index=token.create_index,
        modify_index=token.modify_index,
    )


def whole_token(stub: TokenStub, token: Token, secret: str) -> TokenDetail:
    """Return a token with its details."""
    return TokenDetail(
        **msgspec.structs.asdict(stub),
        secret_id=secret if token.create_index or token.kind is TokenKind.BATCH else "",
        expiration_ttl=durations.text(token.ttl) if token.ttl else "",
    )
