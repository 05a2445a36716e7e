"""Why a request is allowed or refused: the rule that decides, and the policies that have it.

The same grants are asked as for the request itself, so an explanation cannot say anything else
than what happens; only what the handler finds out (the namespace of an object, whether a write
creates) is taken from what the question says.
"""

from collections.abc import Iterable

import msgspec

from daemon.acl.check import EVERYWHERE, Asks, Caller, Needs
from daemon.acl.grant import APART, Grant, Names
from daemon.acl.policies import DENY
from storage.records.base import Record


class Right(msgspec.Struct, frozen=True, kw_only=True):
    """What a request needs. On the secrets side: all of these capabilities at its path."""

    needs: Needs
    namespace: str
    path: str = ""
    capabilities: tuple[str, ...] = ()
    is_listing: bool = False


class Explanation(Record, frozen=True, kw_only=True):
    """Whether a request is allowed, and why."""

    allowed: bool
    needs: str
    rule: str = ""  # the one that decides
    policies: tuple[str, ...] = ()  # that have it
    capabilities: tuple[str, ...] = ()  # that it gives
    reason: str


def explain(caller: Caller, right: Right) -> Explanation:
    """Return why the holder of a token may do what needs this right, or may not."""
    needed = _needed(right)
    if right.needs.asks in (Asks.NOTHING, Asks.TOKEN):
        return Explanation(allowed=True, needs=needed, reason="nobody needs a right for this")
    if caller.grant.everything:
        return Explanation(
            allowed=True, needs=needed, policies=("root",), reason="the token may do everything"
        )
    match right.needs.asks:
        case Asks.MANAGEMENT:
            return Explanation(allowed=False, needs=needed, reason="it is no management token")
        case Asks.SCOPE:
            return _of_scope(caller.grant, right, needed)
        case Asks.PATH:
            return _of_path(caller.grant, right, needed)
        case Asks.VARIABLE:
            name = f"{right.namespace}{APART}{right.path}"
            return _of_name("variable", caller.grant.variables, name, right, needed)
        case _:
            return _of_namespace(caller.grant, right, needed)


def _needed(right: Right) -> str:
    needs = right.needs
    match needs.asks:
        case Asks.NAMESPACE | Asks.OBJECT:
            return f"{' or '.join(needs.any_of)} on the namespace {right.namespace}"
        case Asks.VARIABLE:
            return f"{needs.any_of[0]} on the variable {right.path} in {right.namespace}"
        case Asks.SCOPE:
            return f"{needs.any_of[0]} on {needs.scope}"
        case Asks.PATH:
            return f"{' and '.join(right.capabilities)} at {right.path}"
        case _:
            return needs.asks


def _of_namespace(grant: Grant, right: Right, needed: str) -> Explanation:
    if not (right.needs.everywhere and right.namespace == EVERYWHERE):
        return _of_name("namespace", grant.namespaces, right.namespace, right, needed)
    for name, rule in grant.namespaces.all.items():
        if not rule.capabilities.isdisjoint(right.needs.any_of):
            return _decided(f'namespace "{name}"', rule.capabilities, rule.policies, right, needed)
    return _undecided(needed)


def _of_name(kind: str, names: Names, name: str, right: Right, needed: str) -> Explanation:
    found = names.find(name)
    if found is None:
        return _undecided(needed)
    written, rule = found
    label = written.replace(APART, '" path "')
    return _decided(f'{kind} "{label}"', rule.capabilities, rule.policies, right, needed)


def _decided(
    rule: str,
    capabilities: Iterable[str],
    policies: tuple[str, ...],
    right: Right,
    needed: str,
) -> Explanation:
    given = tuple(sorted(capabilities)) or (DENY,)
    allowed = not set(given).isdisjoint(right.needs.any_of)
    verb = "gives it" if allowed else "does not give it"
    return Explanation(
        allowed=allowed,
        needs=needed,
        rule=rule,
        policies=policies,
        capabilities=given,
        reason=f"the closest rule, {rule}, {verb}",
    )


def _undecided(needed: str) -> Explanation:
    return Explanation(allowed=False, needs=needed, reason="no rule of the token's policies fits")


def _of_scope(grant: Grant, right: Right, needed: str) -> Explanation:
    scope = right.needs.scope
    found = grant.scopes.get(scope)
    if found is None:
        return _undecided(needed)
    allowed = grant.may_in(scope, right.needs.any_of[0])
    return Explanation(
        allowed=allowed,
        needs=needed,
        rule=scope,
        policies=found.policies,
        capabilities=(found.level,),
        reason=f"the policies together give {found.level} on {scope}",
    )


def _of_path(grant: Grant, right: Right, needed: str) -> Explanation:
    path = f"{right.path.rstrip('/')}/" if right.is_listing else right.path
    found = grant.permission(path, listing=right.is_listing)
    if found is None:
        return _undecided(needed)
    allowed = set(right.capabilities) <= found.capabilities
    limits = " within its parameters" if found.allowed or found.denied or found.required else ""
    verb = f"gives it{limits}" if allowed else "does not give it"
    rule = f'path "{found.path}"'
    return Explanation(
        allowed=allowed,
        needs=needed,
        rule=rule,
        policies=found.policies,
        capabilities=tuple(sorted(found.capabilities)) or (DENY,),
        reason=f"the most specific rule, {rule}, {verb}",
    )
