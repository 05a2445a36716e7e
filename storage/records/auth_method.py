"""Login methods of the jobs API, and the rules that bind their logins to roles and policies."""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

import msgspec

from storage.records import durations
from storage.records.base import Record, Span
from storage.records.times import rfc3339

LOCALITIES = ("local", "global")
REDACTED = "redacted"  # shown and stored in place of a secret


class MethodType(StrEnum):
    """The kind of credential that a method accepts."""

    JWT = "JWT"
    OIDC = "OIDC"


class BindType(StrEnum):
    """The object that a rule binds a login to."""

    ROLE = "role"
    POLICY = "policy"
    MANAGEMENT = "management"


class AssertionKey(Record, frozen=True, kw_only=True):
    """The key of a client assertion."""

    pem_key: str = ""
    pem_key_file: str = ""
    key_id_header: str = msgspec.field(name="KeyIDHeader", default="")
    key_id: str = msgspec.field(name="KeyID", default="")
    pem_cert: str = ""
    pem_cert_file: str = ""


class ClientAssertion(Record, frozen=True, kw_only=True):
    """The settings with which an OIDC client proves its identity to the provider."""

    key_source: str = ""
    key_algorithm: str = ""
    audience: list[str] | None = None
    private_key: AssertionKey | None = None
    extra_headers: dict[str, str] | None = None


class _ConfigFields(Record, frozen=True, kw_only=True):
    """The configuration fields of a method that have the same form in requests and in responses."""

    jwt_validation_pub_keys: list[str] | None = msgspec.field(
        name="JWTValidationPubKeys", default=None
    )
    jwks_url: str = msgspec.field(name="JWKSURL", default="")
    jwks_ca_cert: str = msgspec.field(name="JWKSCACert", default="")
    oidc_discovery_url: str = msgspec.field(name="OIDCDiscoveryURL", default="")
    oidc_client_id: str = msgspec.field(name="OIDCClientID", default="")
    oidc_client_secret: str = msgspec.field(name="OIDCClientSecret", default="")
    oidc_client_assertion: ClientAssertion | None = msgspec.field(
        name="OIDCClientAssertion", default=None
    )
    oidc_enable_pkce: bool = msgspec.field(name="OIDCEnablePKCE", default=False)
    oidc_disable_user_info: bool = msgspec.field(name="OIDCDisableUserInfo", default=False)
    oidc_scopes: list[str] | None = msgspec.field(name="OIDCScopes", default=None)
    bound_audiences: list[str] | None = None
    bound_issuer: list[str] | None = None
    allowed_redirect_uris: list[str] | None = msgspec.field(
        name="AllowedRedirectURIs", default=None
    )
    discovery_ca_pem: list[str] | None = msgspec.field(name="DiscoveryCaPem", default=None)
    signing_algs: list[str] | None = None
    claim_mappings: dict[str, str] | None = None
    list_claim_mappings: dict[str, str] | None = None
    verbose_logging: bool = False


class AuthMethodConfig(_ConfigFields, frozen=True, kw_only=True):
    """The configuration of a method. Leeways are in nanoseconds; 0 means the default."""

    inert: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            (
                "oidc_client_id",
                "oidc_client_secret",
                "oidc_client_assertion",
                "oidc_enable_pkce",
                "oidc_disable_user_info",
                "oidc_scopes",
                "allowed_redirect_uris",
            ),
            "Steward has no OIDC login for the jobs API",
        ),
        "verbose_logging": "Steward never logs claims",
    }

    expiration_leeway: Span = 0
    not_before_leeway: Span = 0
    clock_skew_leeway: Span = 0


class AuthMethodConfigView(_ConfigFields, frozen=True, kw_only=True):
    """The configuration in a response. Leeways are text; empty means the default."""

    expiration_leeway: str
    not_before_leeway: str
    clock_skew_leeway: str


class _MethodFields(Record, frozen=True, kw_only=True):
    """The writable fields of a method. Durations are in nanoseconds."""

    name: str = ""
    type: str = ""
    token_locality: str = ""
    token_name_format: str = ""
    max_token_ttl: Span = 0
    default: bool = False
    config: AuthMethodConfig | None = None


class AuthMethodRequest(_MethodFields, frozen=True, kw_only=True):
    """The body of a request that creates or changes a method."""

    # Clients send these fields back as they have read them. They have no effect.
    hash: str = ""
    create_time: str = ""
    modify_time: str = ""
    create_index: int = 0
    modify_index: int = 0


class AuthMethod(_MethodFields, frozen=True, kw_only=True):
    """A login method of the jobs API. Times are in nanoseconds."""

    hash: str = ""
    created_at: int = 0
    modified_at: int = 0
    create_index: int = 0
    modify_index: int = 0

    @property
    def is_global(self) -> bool:
        """Return whether the tokens of this method are valid in all regions."""
        return self.token_locality == LOCALITIES[1]


class AuthMethodStub(Record, frozen=True, kw_only=True):
    """A method in a listing."""

    name: str
    type: str
    default: bool
    hash: str
    create_index: int
    modify_index: int


class AuthMethodView(AuthMethodStub, frozen=True, kw_only=True):
    """A method in a response."""

    token_locality: str
    token_name_format: str
    max_token_ttl: str
    config: AuthMethodConfigView | None
    create_time: str
    modify_time: str


class _RuleFields(Record, frozen=True, kw_only=True):
    """The writable fields of a binding rule."""

    id: str = ""
    description: str = ""
    auth_method: str = ""
    selector: str = ""  # a filter over `value` and `list`; empty selects every login
    bind_type: str = ""
    bind_name: str = ""


class BindingRuleRequest(_RuleFields, frozen=True, kw_only=True):
    """The body of a request that creates or changes a rule."""

    # Clients send these fields back as they have read them. They have no effect.
    hash: str = ""
    create_time: str = ""
    modify_time: str = ""
    create_index: int = 0
    modify_index: int = 0


class BindingRule(_RuleFields, frozen=True, kw_only=True):
    """A rule that gives a role, a policy or all permissions to the logins that it selects."""

    hash: str = ""
    created_at: int = 0
    modified_at: int = 0
    create_index: int = 0
    modify_index: int = 0


class BindingRuleStub(Record, frozen=True, kw_only=True):
    """A rule in a listing."""

    id: str
    description: str
    auth_method: str
    hash: str
    create_index: int
    modify_index: int


class BindingRuleView(BindingRuleStub, frozen=True, kw_only=True):
    """A rule in a response."""

    selector: str
    bind_type: str
    bind_name: str
    create_time: str
    modify_time: str


def method_stub(method: AuthMethod) -> AuthMethodStub:
    """Return a method in listing form."""
    return AuthMethodStub(
        name=method.name,
        type=method.type,
        default=method.default,
        hash=method.hash,
        create_index=method.create_index,
        modify_index=method.modify_index,
    )


def method_view(method: AuthMethod) -> AuthMethodView:
    """Return a method with all its fields."""
    return AuthMethodView(
        **msgspec.structs.asdict(method_stub(method)),
        token_locality=method.token_locality,
        token_name_format=method.token_name_format,
        max_token_ttl=durations.text(method.max_token_ttl),
        config=_config_view(method.config) if method.config else None,
        create_time=rfc3339(method.created_at),
        modify_time=rfc3339(method.modified_at),
    )


def _config_view(config: AuthMethodConfig) -> AuthMethodConfigView:
    fields = msgspec.structs.asdict(config)
    for name in ("expiration_leeway", "not_before_leeway", "clock_skew_leeway"):
        fields[name] = durations.text(fields[name]) if fields[name] else ""
    return AuthMethodConfigView(**fields)


def rule_stub(rule: BindingRule) -> BindingRuleStub:
    """Return a rule in listing form."""
    return BindingRuleStub(
        id=rule.id,
        description=rule.description,
        auth_method=rule.auth_method,
        hash=rule.hash,
        create_index=rule.create_index,
        modify_index=rule.modify_index,
    )


def rule_view(rule: BindingRule) -> BindingRuleView:
    """Return a rule with all its fields."""
    return BindingRuleView(
        **msgspec.structs.asdict(rule_stub(rule)),
        selector=rule.selector,
        bind_type=rule.bind_type,
        bind_name=rule.bind_name,
        create_time=rfc3339(rule.created_at),
        modify_time=rfc3339(rule.modified_at),
    )
