"""The combined grant of a set of policies.

A grant is built once for a set of policies and used for many requests. So its rules are indexed by
exact name, then by pattern. Rules for the same name are merged over all policies, and `deny`
overrides all others. Among rules for different names, only the closest rule counts.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from daemon.acl.path_rules import PathPermission, PathRules
from daemon.acl.policy_rules import DENY, NamedRule, PolicyRules

_SAME = {"sentinel-override": "policy-override"}
_LEVELS = {"list": 1, "read": 2, "write": 3}
APART = "\0"  # separates namespace and path in the patterns of variables

NamedPolicy = tuple[str, PolicyRules]


class NameRule(msgspec.Struct, frozen=True):
    """The capabilities for one name or pattern, and the policies that grant them."""

    capabilities: frozenset[str]
    policies: tuple[str, ...]


class AccessLevel(msgspec.Struct, frozen=True):
    """The access level on one scope, such as `node`, and the policies that grant it."""

    level: str
    policies: tuple[str, ...]


class NameRules:
    """Capabilities by name: the rule for the exact name decides, or else the closest pattern."""

    def __init__(self, rules: Iterable[tuple[str, str, Sequence[str]]]) -> None:
        merged: dict[str, tuple[set[str], dict[str, None]]] = {}
        for policy, name, capabilities in rules:
            words, sources = merged.setdefault(name, (set(), {}))
            words.update(_SAME.get(word, word) for word in capabilities)
            sources[policy] = None
        self.all = {
            name: NameRule(frozenset() if DENY in words else frozenset(words), tuple(sources))
            for name, (words, sources) in merged.items()
        }
        self._patterns = [name for name in self.all if "*" in name]

    def find(self, name: str) -> tuple[str, NameRule] | None:
        """Return the name or pattern of the deciding rule for a name, and the rule."""
        if exact := self.all.get(name):
            return name, exact
        fitting = [pattern for pattern in self._patterns if fits(pattern, name)]
        if not fitting:
            return None
        closest = min(fitting, key=lambda pattern: (_distance(pattern, name), pattern))
        return closest, self.all[closest]

    def allow(self, name: str, capabilities: Iterable[str]) -> bool:
        """Return whether a rule grants any of the capabilities for a name."""
        match = self.find(name)
        return match is not None and not match[1].capabilities.isdisjoint(capabilities)


_SERIALS = itertools.count()


class CapabilitySet:
    """The grant of one caller. `everything` is true for management tokens, or if ACLs are disabled.

    `serial` is unique in this process. After a change of rights, the caller's new grant has another
    `serial`.
    """

    def __init__(self, policies: Sequence[NamedPolicy], *, everything: bool = False) -> None:
        self.everything = everything
        self.serial = next(_SERIALS)
        self.namespaces = NameRules(_found(policies, lambda rules: rules.namespaces))
        self.pools = NameRules(_found(policies, lambda rules: rules.node_pools))
        self.volumes = NameRules(_found(policies, lambda rules: rules.host_volumes))
        self.variables = NameRules(_variables(policies))
        self.scopes = _scopes(policies)
        self.paths = PathRules((name, rules.paths) for name, rules in policies)

    # --- jobs API

    @property
    def is_empty(self) -> bool:
        """Return whether there is no rule for the jobs API."""
        rules = (self.namespaces, self.pools, self.volumes, self.variables)
        return not (self.everything or self.scopes or any(rule.all for rule in rules))

    def may(self, namespace: str, *capabilities: str) -> bool:
        """Return whether any of the capabilities is granted in a namespace."""
        return self.everything or self.namespaces.allow(namespace, capabilities)

    def may_anywhere(self, *capabilities: str) -> bool:
        """Return whether any of the capabilities is granted in at least one namespace."""
        rules = self.namespaces.all.values()
        return self.everything or any(
            not rule.capabilities.isdisjoint(capabilities) for rule in rules
        )

    def knows(self, namespace: str) -> bool:
        """Return whether the caller has any capability in a namespace."""
        match = self.namespaces.find(namespace)
        return self.everything or (match is not None and bool(match[1].capabilities))

    def may_in(self, scope: str, level: str) -> bool:
        """Return whether the caller has this level on a scope, such as `node` or `operator`."""
        capability = self.scopes.get(scope)
        return self.everything or (
            capability is not None and _LEVELS.get(capability.level, 0) >= _LEVELS[level]
        )

    def may_with_variable(self, namespace: str, path: str, capability: str) -> bool:
        """Return whether a capability on a variable is allowed."""
        return self.everything or self.variables.allow(f"{namespace}{APART}{path}", [capability])

    def may_with_some_variable(self, *capabilities: str) -> bool:
        """Return whether any of the capabilities is granted on at least one variable."""
        rules = self.variables.all.values()
        return self.everything or any(
            not rule.capabilities.isdisjoint(capabilities) for rule in rules
        )

    def may_with_pool(self, pool: str, capability: str) -> bool:
        """Return whether a capability on a node pool is allowed."""
        return self.everything or self.pools.allow(pool, [capability])

    def may_with_volume(self, volume: str, capability: str) -> bool:
        """Return whether a capability on a host volume is allowed."""
        return self.everything or self.volumes.allow(volume, [capability])

    # --- Vault API

    def permission(self, path: str, *, listing: bool = False) -> PathPermission | None:
        """Return the permission at a path, or None. Callers must check `everything` first."""
        return self.paths.find(path, listing=listing)

    def capabilities(self, path: str) -> list[str]:
        """Return the capabilities at a path: only `root` for full access, only `deny` for none."""
        if self.everything:
            return ["root"]
        permission = self.paths.find(path, listing=path.endswith("/"))
        return sorted(permission.capabilities) if permission and permission.capabilities else [DENY]


def _found(
    policies: Sequence[NamedPolicy], rules_of: Callable[[PolicyRules], Iterable[NamedRule]]
) -> Iterable[tuple[str, str, Sequence[str]]]:
    for policy, rules in policies:
        for rule in rules_of(rules):
            yield policy, rule.name, rule.capabilities


def _variables(policies: Sequence[NamedPolicy]) -> Iterable[tuple[str, str, Sequence[str]]]:
    for policy, rules in policies:
        for rule in rules.namespaces:
            for variable in rule.variables or ():
                yield policy, f"{rule.name}{APART}{variable.path}", variable.capabilities


def _scopes(policies: Sequence[NamedPolicy]) -> Mapping[str, AccessLevel]:
    """Return the highest level on each scope; a denial in any policy removes the scope."""
    levels: dict[str, AccessLevel] = {}
    for name, rules in policies:
        for scope, level in rules.scopes.items():
            present = levels.get(scope, AccessLevel(level, ()))
            if DENY in (present.level, level):
                highest = DENY
            else:
                highest = max(present.level, level, key=_LEVELS.__getitem__)
            levels[scope] = AccessLevel(highest, (*present.policies, name))
    return levels


def fits(pattern: str, text: str) -> bool:
    """Return whether a string matches a pattern, in which `*` matches any string.

    >>> fits("team-*", "team-a"), fits("*-a", "team-b")
    (True, False)
    """
    first, *middle = pattern.split("*")
    if not middle:
        return pattern == text
    last = middle.pop()
    if not text.startswith(first):
        return False
    position = len(first)
    for part in middle:
        position = text.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return text.endswith(last) and len(text) - len(last) >= position


def _distance(pattern: str, text: str) -> int:
    """Return the number of characters that the wildcards of a pattern match in a text."""
    return len(text) - len(pattern) + pattern.count("*")
