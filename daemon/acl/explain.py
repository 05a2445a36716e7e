"""Explanation of access decisions: the deciding rule, and the policies that contain it.

The explanation uses the same grants as a real request, so it always agrees with the real decision.
For a real request, the handler finds out the object's namespace, and whether a write creates the
object. A request for an explanation must contain both facts.
"""

from collections.abc import Iterable

import msgspec

from daemon.acl.check import EVERYWHERE, Caller, RequiredCapability, Requirement
from daemon.acl.grant import APART, CapabilitySet, NameRules
from daemon.acl.policy_rules import DENY
from storage.records.base import Record


class RequestedCapability(msgspec.Struct, frozen=True, kw_only=True):
    """A permission to be explained. In the Vault API, it means all `capabilities` at `path`."""

    needs: RequiredCapability
    namespace: str
    path: str = ""
    capabilities: tuple[str, ...] = ()
    is_listing: bool = False


class AccessDecision(Record, frozen=True, kw_only=True):
    """The decision about a request, with its reason."""

    allowed: bool
    needs: str
    rule: str = ""  # the deciding rule
    policies: tuple[str, ...] = ()  # policies that contain the rule
    capabilities: tuple[str, ...] = ()  # capabilities that the rule grants
    reason: str


def explain(caller: Caller, right: RequestedCapability) -> AccessDecision:
    """Explain why a caller has a permission, or lacks it."""
    needed = _needed(right)
    if right.needs.asks in (Requirement.NOTHING, Requirement.TOKEN):
        return AccessDecision(allowed=True, needs=needed, reason="the request needs no capability")
    if caller.grant.everything:
        return AccessDecision(
            allowed=True, needs=needed, policies=("root",), reason="the token may do everything"
        )
    match right.needs.asks:
        case Requirement.MANAGEMENT:
            return AccessDecision(
                allowed=False, needs=needed, reason="the token is not a management token"
            )
        case Requirement.SCOPE:
            return _of_scope(caller.grant, right, needed)
        case Requirement.PATH:
            return _of_path(caller.grant, right, needed)
        case Requirement.VARIABLE:
            name = f"{right.namespace}{APART}{right.path}"
            return _of_name("variable", caller.grant.variables, name, right, needed)
        case _:
            return _of_namespace(caller.grant, right, needed)


def _needed(right: RequestedCapability) -> str:
    needs = right.needs
    match needs.asks:
        case Requirement.NAMESPACE | Requirement.OBJECT:
            return f"{' or '.join(needs.any_of)} on the namespace {right.namespace}"
        case Requirement.VARIABLE:
            return f"{needs.any_of[0]} on the variable {right.path} in {right.namespace}"
        case Requirement.SCOPE:
            return f"{needs.any_of[0]} on {needs.scope}"
        case Requirement.PATH:
            return f"{' and '.join(right.capabilities)} at {right.path}"
        case _:
            return needs.asks


def _of_namespace(grant: CapabilitySet, right: RequestedCapability, needed: str) -> AccessDecision:
    if not (right.needs.everywhere and right.namespace == EVERYWHERE):
        return _of_name("namespace", grant.namespaces, right.namespace, right, needed)
    for name, rule in grant.namespaces.all.items():
        if not rule.capabilities.isdisjoint(right.needs.any_of):
            return _decided(f'namespace "{name}"', rule.capabilities, rule.policies, right, needed)
    return _undecided(needed)


def _of_name(
    kind: str, names: NameRules, name: str, right: RequestedCapability, needed: str
) -> AccessDecision:
    match = names.find(name)
    if match is None:
        return _undecided(needed)
    written, rule = match
    label = written.replace(APART, '" path "')
    return _decided(f'{kind} "{label}"', rule.capabilities, rule.policies, right, needed)


def _decided(
    rule: str,
    capabilities: Iterable[str],
    policies: tuple[str, ...],
    right: RequestedCapability,
    needed: str,
) -> AccessDecision:
    capabilities_found = tuple(sorted(capabilities)) or (DENY,)
    allowed = not set(capabilities_found).isdisjoint(right.needs.any_of)
    verb = "grants this" if allowed else "does not grant this"
    return AccessDecision(
        allowed=allowed,
        needs=needed,
        rule=rule,
        policies=policies,
        capabilities=capabilities_found,
        reason=f"the closest rule, {rule}, {verb}",
    )


def _undecided(needed: str) -> AccessDecision:
    return AccessDecision(
        allowed=False, needs=needed, reason="no rule in the token's policies applies"
    )


def _of_scope(grant: CapabilitySet, right: RequestedCapability, needed: str) -> AccessDecision:
    scope = right.needs.scope
    granted = grant.scopes.get(scope)
    if granted is None:
        return _undecided(needed)
    allowed = grant.may_in(scope, right.needs.any_of[0])
    return AccessDecision(
        allowed=allowed,
        needs=needed,
        rule=scope,
        policies=granted.policies,
        capabilities=(granted.level,),
        reason=f"the policies together grant {granted.level} on {scope}",
    )


def _of_path(grant: CapabilitySet, right: RequestedCapability, needed: str) -> AccessDecision:
    path = f"{right.path.rstrip('/')}/" if right.is_listing else right.path
    path_permission = grant.permission(path, listing=right.is_listing)
    if path_permission is None:
        return _undecided(needed)
    allowed = set(right.capabilities) <= path_permission.capabilities
    limits = (
        " within its parameters"
        if path_permission.allowed or path_permission.denied or path_permission.required
        else ""
    )
    verb = f"grants this{limits}" if allowed else "does not grant this"
    rule = f'path "{path_permission.path}"'
    return AccessDecision(
        allowed=allowed,
        needs=needed,
        rule=rule,
        policies=path_permission.policies,
        capabilities=tuple(sorted(path_permission.capabilities)) or (DENY,),
        reason=f"the most specific rule, {rule}, {verb}",
    )
