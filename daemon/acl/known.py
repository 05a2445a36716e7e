"""What is known already: who shows a secret, and what policies mean, worked out once.

Grants are remembered for as long as no policy and no role changes, callers for as long as nothing
at all does; a reader of a later moment of the file never gets what an earlier one meant.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence

from daemon.acl.builtin import DEFAULT_RULES
from daemon.acl.check import Caller
from daemon.acl.grant import Grant, NamedPolicy
from daemon.acl.policies import Rules, for_entity, parse
from storage.errors import Malformed
from storage.queries import groups, policies
from storage.readers import Snapshot
from storage.records.acl import DEFAULT, Token
from storage.records.codec import encode
from storage.records.identity import Entity

log = logging.getLogger("steward.acl")

MOST = 1000  # sets of policies, or callers; each costs some kilobytes

_Key = tuple[tuple[str, ...], tuple[str, ...], bytes, tuple[str, ...]]
Shown = tuple[bytes, str]  # the hash of a secret, and the address that it comes from
Moment = tuple[int, int]  # indexes of the last change of a policy, and of a role


class Grants:
    """Grants by the names of policies and roles."""

    def __init__(self) -> None:
        self._moment: Moment = (-1, -1)
        self._grants: OrderedDict[_Key, Grant] = OrderedDict()
        self._rules: dict[str, Rules] = {}

    def of(self, db: Snapshot, token: Token, entity: Entity | None = None) -> Grant:
        """Return what the policies of a token, and of the entity that it belongs to, allow."""
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
        grant = self._grants[key] = self._grant(db, names_of(db, token, entity), entity)
        if len(self._grants) > MOST:
            self._grants.popitem(last=False)
        return grant

    def _grant(self, db: Snapshot, names: Sequence[str], entity: Entity | None) -> Grant:
        """Return what policies allow. One that cannot be read might have denied: nothing is left."""
        found: list[NamedPolicy] = []
        for name in names:
            try:
                rules = self._rules.get(name) or _rules_of(db, name)
            except Malformed as error:
                log.warning("who has policy %r may nothing: it cannot be read: %s", name, error)
                return Grant(())
            if rules is not None:
                self._rules[name] = rules
                found.append((name, for_entity(rules, entity)))
        return Grant(found)


class Callers:
    """Callers by what they show, at one moment of the store (`Store.moment`)."""

    def __init__(self) -> None:
        self._moment: int | None = None
        self._callers: dict[Shown, Caller] = {}

    def find(self, shown: Shown, moment: int | None) -> Caller | None:
        """Return who shows this, if that is known of this moment."""
        return self._callers.get(shown) if moment == self._moment else None

    def keep(self, shown: Shown, moment: int | None, caller: Caller) -> None:
        """Remember who shows this, unless that may change while it is looked at."""
        if moment is None:
            return
        if moment != self._moment or len(self._callers) >= MOST:
            self._moment = moment
            self._callers.clear()
        self._callers[shown] = caller


def names_of(db: Snapshot, token: Token, entity: Entity | None = None) -> list[str]:
    """Return the names of all policies of a token: its own, its roles', its entity's and groups'."""
    of_entity = [*entity.policies, *groups.policies(db, entity.id)] if entity else []
    names = dict.fromkeys([*token.policies, *of_entity])
    for role_id in token.roles:
        role = policies.find_role(db, role_id)
        names.update(dict.fromkeys(link.name for link in (role.policies if role else None) or ()))
    return list(names)


def _rules_of(db: Snapshot, name: str) -> Rules | None:
    """Return the rules of a policy, if there is one of that name. Raises `Malformed`."""
    policy = policies.find(db, name)
    if policy is not None:
        return parse(policy.rules)
    return parse(DEFAULT_RULES) if name == DEFAULT else None
