"""Caches of authentication: callers by secret, and grants by policy names.

Grants stay cached until a policy or a role changes, callers until any write. A reader of a later
version of the store never gets an entry of an earlier one.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence

from daemon.acl.builtin import DEFAULT_RULES
from daemon.acl.check import Caller
from daemon.acl.grant import CapabilitySet, NamedPolicy
from daemon.acl.policy_rules import PolicyRules, expand_entity_templates, parse_policy
from storage.errors import Malformed
from storage.queries import groups, policies
from storage.read_pool import ReadSnapshot
from storage.records.acl import DEFAULT, Token
from storage.records.codec import encode
from storage.records.identity import Entity

log = logging.getLogger("steward.acl")

MOST = 1000  # sets of policies, or callers; each takes some kilobytes

_Key = tuple[tuple[str, ...], tuple[str, ...], bytes, tuple[str, ...]]
Shown = tuple[bytes, str]  # the hash of a secret, and the client's address
Moment = tuple[int, int]  # indexes of the last change of a policy, and of a role


class CapabilitySetCache:
    """Grants, cached for each set of policies and roles."""

    def __init__(self) -> None:
        self._moment: Moment = (-1, -1)
        self._grants: OrderedDict[_Key, CapabilitySet] = OrderedDict()
        self._rules: dict[str, PolicyRules] = {}

    def of(self, db: ReadSnapshot, token: Token, entity: Entity | None = None) -> CapabilitySet:
        """Return the grant of a token, including the policies of its entity."""
        moment = (db.table_index("policies"), db.table_index("acl_roles"))
        if moment != self._moment:
            self._moment = moment
            self._grants.clear()
            self._rules.clear()
        by_groups = tuple(groups.policies(db, entity.id)) if entity else ()
        key = (token.policies, token.roles, encode(entity) if entity else b"", by_groups)
        if key in self._grants:
            self._grants.move_to_end(key)
            return self._grants[key]
        grant = self._grants[key] = self._grant(db, policy_names(db, token, entity), entity)
        if len(self._grants) > MOST:
            self._grants.popitem(last=False)
        return grant

    def _grant(
        self, db: ReadSnapshot, names: Sequence[str], entity: Entity | None
    ) -> CapabilitySet:
        """Return the grant of policies; empty if one is unreadable, because it might deny."""
        named_policies: list[NamedPolicy] = []
        for name in names:
            try:
                rules = self._rules.get(name) or _rules_of(db, name)
            except Malformed as error:
                log.warning(
                    "policy %r grants nothing, because it cannot be parsed: %s", name, error
                )
                return CapabilitySet(())
            if rules is not None:
                self._rules[name] = rules
                named_policies.append((name, expand_entity_templates(rules, entity)))
        return CapabilitySet(named_policies)


class CallerCache:
    """Callers by secret and address, at one version of the store (`Store.change_number`)."""

    def __init__(self) -> None:
        self._moment: int | None = None
        self._callers: dict[Shown, Caller] = {}

    def find(self, shown: Shown, moment: int | None) -> Caller | None:
        """Return the cached caller at this version, or None."""
        return self._callers.get(shown) if moment == self._moment else None

    def store(self, shown: Shown, moment: int | None, caller: Caller) -> None:
        """Cache a caller, unless its rights can change without a write."""
        if moment is None:
            return
        if moment != self._moment or len(self._callers) >= MOST:
            self._moment = moment
            self._callers.clear()
        self._callers[shown] = caller


def policy_names(db: ReadSnapshot, token: Token, entity: Entity | None = None) -> list[str]:
    """Return all policy names of a token: its own, and those of roles, entity and groups."""
    of_entity = [*entity.policies, *groups.policies(db, entity.id)] if entity else []
    names = dict.fromkeys([*token.policies, *of_entity])
    for role_id in token.roles:
        role = policies.find_role(db, role_id)
        names.update(dict.fromkeys(link.name for link in (role.policies if role else None) or ()))
    return list(names)


def _rules_of(db: ReadSnapshot, name: str) -> PolicyRules | None:
    """Return the rules of a policy, or None if it does not exist. Raises `Malformed`."""
    policy = policies.find(db, name)
    if policy is not None:
        return parse_policy(policy.rules)
    return parse_policy(DEFAULT_RULES) if name == DEFAULT else None
