"""Binding rules: their validation, and the roles and policies that they grant to a login."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from daemon.acl.nomad_tokens import NAME, content_hash
from daemon.identity.claim_mapping import MappedClaims, interpolate
from daemon.jobspec.filter import Filter
from daemon.jobspec.filters.syntax import parse
from daemon.text.go_format import multi_error, quote
from storage.errors import Malformed
from storage.queries import auth_methods, policies
from storage.read_pool import ReadSnapshot
from storage.records.acl import BUILT_IN, ROOT
from storage.records.auth_method import BindingRule, BindingRuleRequest, BindType
from storage.writer import Transaction

MOST_RULES = 500  # rules of a method; each login evaluates all of them
_LONGEST_DESCRIPTION = 256
_LONGEST_SELECTOR = 2048
_LONGEST_NAME = 1024


class Bindings(msgspec.Struct, frozen=True, kw_only=True):
    """The policies and role IDs that a login gets; a management token has the policy `root`."""

    policies: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether no rule granted anything."""
        return not (self.policies or self.roles)


# --- changes ------------------------------------------------------------------------------------


def put_rule(tx: Transaction, request: BindingRuleRequest, *, fresh: str, now: int) -> BindingRule:
    """Create a rule with the ID `fresh`, or change the rule that the request names.

    Raises `Malformed`.
    """
    rule = _changed(tx, request) if request.id else _new(request)
    if errors := list(_errors(rule)):
        raise Malformed(f"binding rule 0 invalid: {multi_error(errors)}")
    if auth_methods.find(tx, rule.auth_method) is None:
        raise Malformed(f"ACL auth method {rule.auth_method} not found")
    if not rule.id and auth_methods.count_rules(tx, rule.auth_method, MOST_RULES) >= MOST_RULES:
        raise Malformed(
            f"ACL auth method {rule.auth_method} has {MOST_RULES} binding rules: delete some, or "
            "bind several identities with one selector"
        )
    rule = msgspec.structs.replace(
        rule, id=rule.id or fresh, created_at=rule.created_at or now, modified_at=now
    )
    return auth_methods.put_rule(tx, msgspec.structs.replace(rule, hash=_hash(rule)))


def _new(binding_rule_request: BindingRuleRequest) -> BindingRule:
    return BindingRule(
        description=binding_rule_request.description,
        auth_method=binding_rule_request.auth_method,
        selector=binding_rule_request.selector,
        bind_type=binding_rule_request.bind_type,
        bind_name=binding_rule_request.bind_name,
    )


def _changed(db: ReadSnapshot, binding_rule_request: BindingRuleRequest) -> BindingRule:
    """Return the stored rule after the changes in a request. Raises `Malformed`.

    If the bind type or the bind name in the request is empty, the stored value stays.
    """
    before = auth_methods.find_rule(db, binding_rule_request.id)
    if before is None:
        raise Malformed(f"cannot find binding rule {binding_rule_request.id}")
    if binding_rule_request.auth_method not in ("", before.auth_method):
        raise Malformed("cannot update auth method for binding rule, create a new rule instead")
    return msgspec.structs.replace(
        before,
        description=binding_rule_request.description,
        selector=binding_rule_request.selector,
        bind_type=binding_rule_request.bind_type or before.bind_type,
        bind_name=binding_rule_request.bind_name or before.bind_name,
    )


def _hash(rule: BindingRule) -> str:
    return content_hash(
        rule.id, rule.description, rule.auth_method, rule.selector, rule.bind_type, rule.bind_name
    )


def _errors(rule: BindingRule) -> Iterable[str]:
    if not rule.auth_method:
        yield "auth method is missing"
    if len(rule.description) > _LONGEST_DESCRIPTION:
        yield f"description longer than {_LONGEST_DESCRIPTION}"
    yield from _bind_errors(rule)
    if len(rule.selector) > _LONGEST_SELECTOR:
        yield f"selector longer than {_LONGEST_SELECTOR}"
    elif rule.selector:
        try:
            parse(rule.selector)
        except Malformed as error:
            yield f"selector is invalid: {error}"


def _bind_errors(rule: BindingRule) -> Iterable[str]:
    match rule.bind_type:
        case "":
            yield "bind type is missing"
        case BindType.ROLE | BindType.POLICY:
            if not rule.bind_name:
                yield "bind name is missing"
            if len(rule.bind_name) > _LONGEST_NAME:
                yield f"bind name longer than {_LONGEST_NAME}"
        case BindType.MANAGEMENT:
            if rule.bind_name:
                yield "bind name should be empty"
        case _:
            yield f"unsupported bind type: {quote(rule.bind_type)}"


# --- logins -------------------------------------------------------------------------------------


def select(rules: Sequence[BindingRule], claims: MappedClaims) -> list[BindingRule]:
    """Return the rules whose selector matches the claims.

    A selector that cannot be evaluated does not match.
    """
    document = msgspec.to_builtins(claims)
    return [rule for rule in rules if _matches(rule.selector, document)]


def _matches(selector: str, document: object) -> bool:
    if not selector:
        return True
    try:
        return Filter(selector, MappedClaims)(document)
    except Malformed:
        return False


def bind(db: ReadSnapshot, rules: Iterable[BindingRule], values: Mapping[str, str]) -> Bindings:
    """Return the roles and policies that `rules` grant. The caller passes only matching rules.

    `values` are the mapped claims of the login. They replace the references in the bind names.
    Roles and policies that do not exist are omitted. A management rule overrides all others.
    Raises `Malformed`.
    """
    targets: dict[BindType, list[str]] = {BindType.POLICY: [], BindType.ROLE: []}
    lowered = {name: value.lower() for name, value in values.items()}
    for rule in rules:
        if rule.bind_type == BindType.MANAGEMENT:
            return Bindings(policies=(ROOT,))
        kind = BindType(rule.bind_type)
        targets[kind] += _target(db, kind, _bind_name(rule, lowered))
    return Bindings(
        policies=tuple(dict.fromkeys(targets[BindType.POLICY])),
        roles=tuple(dict.fromkeys(targets[BindType.ROLE])),
    )


def _bind_name(rule: BindingRule, values: Mapping[str, str]) -> str:
    try:
        name = interpolate(rule.bind_name, values)
    except Malformed as error:
        raise Malformed(
            f"cannot compute {quote(rule.bind_type)} bind name for bind target: {error}"
        ) from error
    if not NAME.fullmatch(name):
        raise Malformed(
            f"computed {quote(rule.bind_type)} bind name for bind target is invalid: {quote(name)}"
        )
    return name


def _target(db: ReadSnapshot, kind: BindType, name: str) -> list[str]:
    """Return a list with the policy's name or the role's ID; empty if no such object exists."""
    if kind is BindType.ROLE:
        role = policies.role_named(db, name)
        return [role.id] if role else []
    is_bindable = name not in BUILT_IN and policies.find(db, name) is not None
    return [name] if is_bindable else []
