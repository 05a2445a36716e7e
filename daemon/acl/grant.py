"""What the policies of one caller allow together.

Made once for a set of policies and asked for each request, so the rules are put into the form in
which they are asked: by exact name, then by pattern. Rules for the same name add up over all
policies, and `deny` among them takes everything away; of rules for different names the closest
one decides alone, whatever the wider ones say.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from daemon.acl.paths import PathRules, Permission
from daemon.acl.policies import DENY, NamedRule, Rules

_SAME = {"sentinel-override": "policy-override"}
_LEVELS = {"list": 1, "read": 2, "write": 3}
APART = "\0"  # between namespace and path in the patterns of variables

NamedPolicy = tuple[str, Rules]


class Named(msgspec.Struct, frozen=True):
    """What may be done with the things of one name or pattern, and which policies say so."""

    capabilities: frozenset[str]
    policies: tuple[str, ...]


class Level(msgspec.Struct, frozen=True):
    """What may be done with a part of the daemon, and which policies say so."""

    level: str
    policies: tuple[str, ...]


class Names:
    """Capabilities by name: the exact name decides, else the closest pattern."""

    def __init__(self, found: Iterable[tuple[str, str, Sequence[str]]]) -> None:
        merged: dict[str, tuple[set[str], dict[str, None]]] = {}
        for policy, name, capabilities in found:
            words, sources = merged.setdefault(name, (set(), {}))
            words.update(_SAME.get(word, word) for word in capabilities)
            sources[policy] = None
        self.all = {
            name: Named(frozenset() if DENY in words else frozenset(words), tuple(sources))
            for name, (words, sources) in merged.items()
        }
        self._patterns = [name for name in self.all if "*" in name]

    def find(self, name: str) -> tuple[str, Named] | None:
        """Return the rule that decides about a name, and what it is written for."""
        if exact := self.all.get(name):
            return name, exact
        fitting = [pattern for pattern in self._patterns if fits(pattern, name)]
        if not fitting:
            return None
        closest = min(fitting, key=lambda pattern: (_distance(pattern, name), pattern))
        return closest, self.all[closest]

    def allow(self, name: str, capabilities: Iterable[str]) -> bool:
        """Tell whether any of these is allowed."""
        found = self.find(name)
        return found is not None and not found[1].capabilities.isdisjoint(capabilities)


class Grant:
    """What one caller may do. `everything` is for management tokens and where nobody is asked."""

    def __init__(self, policies: Sequence[NamedPolicy], *, everything: bool = False) -> None:
        self.everything = everything
        self.namespaces = Names(_found(policies, lambda rules: rules.namespaces))
        self.pools = Names(_found(policies, lambda rules: rules.node_pools))
        self.volumes = Names(_found(policies, lambda rules: rules.host_volumes))
        self.variables = Names(_variables(policies))
        self.scopes = _scopes(policies)
        self.paths = PathRules((name, rules.paths) for name, rules in policies)

    # ---- the jobs side

    def may(self, namespace: str, *capabilities: str) -> bool:
        """Tell whether any of these is allowed in a namespace."""
        return self.everything or self.namespaces.allow(namespace, capabilities)

    def may_anywhere(self, *capabilities: str) -> bool:
        """Tell whether any of these is allowed in any namespace at all."""
        rules = self.namespaces.all.values()
        return self.everything or any(
            not rule.capabilities.isdisjoint(capabilities) for rule in rules
        )

    def knows(self, namespace: str) -> bool:
        """Tell whether anything at all is allowed in a namespace."""
        found = self.namespaces.find(namespace)
        return self.everything or (found is not None and bool(found[1].capabilities))

    def may_in(self, scope: str, level: str) -> bool:
        """Tell whether this level is allowed on agent, node, operator, quota or plugin."""
        given = self.scopes.get(scope)
        return self.everything or (
            given is not None and _LEVELS.get(given.level, 0) >= _LEVELS[level]
        )

    def may_with_variable(self, namespace: str, path: str, capability: str) -> bool:
        """Tell whether a variable may be read, listed, written or destroyed."""
        return self.everything or self.variables.allow(f"{namespace}{APART}{path}", [capability])

    def may_with_pool(self, pool: str, capability: str) -> bool:
        """Tell whether a pool of nodes may be read, written or deleted."""
        return self.everything or self.pools.allow(pool, [capability])

    def may_with_volume(self, volume: str, capability: str) -> bool:
        """Tell whether a volume of the host may be mounted so."""
        return self.everything or self.volumes.allow(volume, [capability])

    # ---- the secrets side

    def permission(self, path: str, *, listing: bool = False) -> Permission | None:
        """Return what is allowed at a path; None: nothing. Ask `everything` first."""
        return self.paths.find(path, listing=listing)

    def capabilities(self, path: str) -> list[str]:
        """Return what is allowed at a path, as it is shown to people."""
        if self.everything:
            return ["root"]
        found = self.paths.find(path, listing=path.endswith("/"))
        return sorted(found.capabilities) if found and found.capabilities else [DENY]


def _found(
    policies: Sequence[NamedPolicy], rules_of: Callable[[Rules], Iterable[NamedRule]]
) -> Iterable[tuple[str, str, Sequence[str]]]:
    for policy, rules in policies:
        for rule in rules_of(rules):
            yield policy, rule.name, rule.capabilities


def _variables(policies: Sequence[NamedPolicy]) -> Iterable[tuple[str, str, Sequence[str]]]:
    for policy, rules in policies:
        for rule in rules.namespaces:
            for variable in rule.variables or ():
                yield policy, f"{rule.name}{APART}{variable.path}", variable.capabilities


def _scopes(policies: Sequence[NamedPolicy]) -> Mapping[str, Level]:
    """Return the highest level of each scope; a denial anywhere takes the scope away."""
    found: dict[str, Level] = {}
    for name, rules in policies:
        for scope, level in rules.scopes.items():
            present = found.get(scope, Level(level, ()))
            if DENY in (present.level, level):
                highest = DENY
            else:
                highest = max(present.level, level, key=_LEVELS.__getitem__)
            found[scope] = Level(highest, (*present.policies, name))
    return found


def fits(pattern: str, text: str) -> bool:
    """Tell whether a text is as a pattern says, in which `*` stands for any text.

    >>> fits("team-*", "team-a"), fits("*-a", "team-b")
    (True, False)
    """
    first, *middle = pattern.split("*")
    if not middle:
        return pattern == text
    last = middle.pop()
    if not text.startswith(first):
        return False
    at = len(first)
    for piece in middle:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return text.endswith(last) and len(text) - len(last) >= at


def _distance(pattern: str, text: str) -> int:
    """Return how many characters of a text the pattern leaves open."""
    return len(text) - len(pattern) + pattern.count("*")
