"""Caches of authentication: callers by secret, and grants by policy names.

A grant stays cached until a policy or a role changes. A caller stays cached until the next write. A
reader that sees a later version of the store never gets an entry of an earlier version.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock

from daemon.acl.builtin import DEFAULT_RULES
from daemon.acl.check import Caller
from daemon.acl.grant import CapabilitySet, NamedPolicy
from daemon.acl.policy_rules import (
    IdentityDetails,
    expand_identity_templates,
    needs_details,
    parse_policy,
)
from daemon.acl.workload_identity import policies_of_task, workload_capabilities
from storage.errors import Malformed
from storage.loop_share import spend
from storage.queries import entities, groups, policies
from storage.read_pool import ReadSnapshot
from storage.records.acl import DEFAULT, Token
from storage.records.codec import encode
from storage.records.identity import Entity
from storage.records.workload import Workload

log = logging.getLogger("steward.acl")

_LONG = 4096  # characters of policy text; a grant of this length takes some milliseconds to build
_LOOKUP = 64  # cost of a policy lookup: the number of characters that are parsed in the same time
MOST = 1000  # entries of each cache; an entry takes some kilobytes

_Key = tuple[object, ...]
Shown = tuple[bytes, str]  # the hash of a secret, and the client's address
Moment = tuple[int, int]  # indexes of the last change of a policy, and of a role

_NO_DETAILS = IdentityDetails()
_DEPENDS_ON_DETAILS = CapabilitySet(())  # marks a key whose grants differ by aliases and groups


class LongGrant(Exception):
    """A grant is not cached, and building it would block the event loop for too long."""


class CapabilitySetCache:
    """A thread-safe cache of grants, with one grant for each set of policies and roles."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._moment: Moment = (-1, -1)
        self._grants: OrderedDict[_Key, CapabilitySet] = OrderedDict()

    def of(
        self,
        db: ReadSnapshot,
        token: Token,
        entity: Entity | None = None,
        *,
        may_take_long: bool = True,
    ) -> CapabilitySet:
        """Return the grant of a token, including the policies of its entity.

        Raises `LongGrant` if the grant is not cached and its policies are long, unless
        `may_take_long`.
        """
        moment = (db.table_index("policies"), db.table_index("acl_roles"))
        by_groups = tuple(groups.policies(db, entity.id)) if entity else ()
        key: _Key = (token.policies, token.roles, encode(entity), by_groups)
        cached, details = self._known(moment, key), _NO_DETAILS
        if cached is _DEPENDS_ON_DETAILS:
            details = _details(db, entity)
            cached = self._known(moment, (*key, encode(details)))
        if cached is not None:
            return cached
        budget = _Budget(may_take_long=may_take_long)
        named_policies = _parsed(_found(db, policy_names(db, token, entity), budget))
        if any(needs_details(rules) for _, rules in named_policies):
            self._store(moment, key, _DEPENDS_ON_DETAILS)
            details = _details(db, entity)
            key = (*key, encode(details))
        grant = _grant(named_policies, entity, details)
        self._store(moment, key, grant)
        return grant

    def of_task(
        self, db: ReadSnapshot, workload: Workload, *, may_take_long: bool = True
    ) -> CapabilitySet:
        """Return the grant of a task's identity. Raises `LongGrant` like `of`."""
        moment = (db.table_index("policies"), db.table_index("acl_roles"))
        key = (
            workload.nomad_namespace,
            workload.nomad_job_id,
            workload.nomad_group,
            workload.nomad_task,
        )
        if (cached := self._known(moment, key)) is not None:
            return cached
        budget, attached = _Budget(may_take_long=may_take_long), list[tuple[str, str]]()
        for name, text in policies_of_task(db, workload):
            budget.spend(text)
            attached.append((name, text))
        grant = workload_capabilities(workload, attached)
        self._store(moment, key, grant)
        return grant

    def _known(self, moment: Moment, key: _Key) -> CapabilitySet | None:
        with self._lock:
            if moment != self._moment:
                self._moment = moment
                self._grants.clear()
            if key in self._grants:
                self._grants.move_to_end(key)
            return self._grants.get(key)

    def _store(self, moment: Moment, key: _Key, grant: CapabilitySet) -> None:
        with self._lock:
            if moment != self._moment:  # a policy has changed since the read
                return
            self._grants[key] = grant
            if len(self._grants) > MOST:
                self._grants.popitem(last=False)


class _Budget:
    """The number of characters of policy text that may still be parsed for one grant."""

    def __init__(self, *, may_take_long: bool) -> None:
        self._left = None if may_take_long else _LONG

    def spend(self, text: str) -> None:
        """Subtract the cost of a policy text from the budget.

        Raises `LongGrant` if the budget is exceeded. If `may_take_long`, there is no budget, but a
        read on the event loop can raise `LongRead`.
        """
        cost = len(text) + _LOOKUP
        if self._left is None:
            spend(cost)
            return
        self._left -= cost
        if self._left < 0:
            raise LongGrant


def _found(db: ReadSnapshot, names: Iterable[str], budget: _Budget) -> list[tuple[str, str]]:
    """Return the name and text of each policy in `names` that exists. Raises `LongGrant`."""
    texts: list[tuple[str, str]] = []
    for name in names:
        policy = policies.find(db, name)
        budget.spend(policy.rules if policy else "")
        if policy is not None:
            texts.append((name, policy.rules))
        elif name == DEFAULT:
            texts.append((name, DEFAULT_RULES))
    return texts


def _parsed(policies_found: Sequence[tuple[str, str]]) -> list[NamedPolicy]:
    """Return the rules of policies.

    Return no rules if a policy cannot be parsed, because that policy might deny something.
    """
    named_policies: list[NamedPolicy] = []
    for name, text in policies_found:
        try:
            named_policies.append((name, parse_policy(text)))
        except Malformed as error:
            log.warning("policy %r grants nothing, because it cannot be parsed: %s", name, error)
            return []
    return named_policies


def _details(db: ReadSnapshot, entity: Entity | None) -> IdentityDetails:
    if entity is None:
        return _NO_DETAILS
    return IdentityDetails(entities.aliases(db, entity.id), groups.containing(db, entity.id))


def _grant(
    named_policies: Sequence[NamedPolicy], entity: Entity | None, details: IdentityDetails
) -> CapabilitySet:
    """Return the combined grant of policies."""
    return CapabilitySet(
        [
            (name, expand_identity_templates(rules, entity, details))
            for name, rules in named_policies
        ]
    )


class CallerCache:
    """Callers by secret and address, at one version of the store (`Store.change_number`)."""

    def __init__(self) -> None:
        self._moment: int | None = None
        self._callers: dict[Shown, Caller] = {}

    def find(self, key: Shown, moment: int | None) -> Caller | None:
        """Return the cached caller, or None.

        `moment` is the store's current change number. Callers that were cached at another change
        number are not returned.
        """
        return self._callers.get(key) if moment == self._moment else None

    def store(self, key: Shown, moment: int | None, caller: Caller) -> None:
        """Cache a caller for the store's change number `moment`; do nothing if `moment` is None.

        The rights of a cached caller must not change without a write.
        """
        if moment is None:
            return
        if moment != self._moment or len(self._callers) >= MOST:
            self._moment = moment
            self._callers.clear()
        self._callers[key] = caller


def policy_names(db: ReadSnapshot, token: Token, entity: Entity | None = None) -> list[str]:
    """Return all policy names of a token: its own, and those of its roles, entity and groups."""
    of_entity = [*entity.policies, *groups.policies(db, entity.id)] if entity else []
    names = dict.fromkeys([*token.policies, *of_entity])
    for role_id in token.roles:
        role = policies.find_role(db, role_id)
        names.update(dict.fromkeys(link.name for link in (role.policies if role else None) or ()))
    return list(names)
