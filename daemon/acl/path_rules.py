"""Path rules of the Vault API: the deciding rule for a path, and its permission.

Only the most specific rule counts. A rule for the exact path precedes every pattern. Among
patterns, the one whose first wildcard comes latest counts. `*` is a wildcard only as the last
character, and `+` only as a whole segment.

The names of roles and policies are stored in lower case. So the path is matched twice: as sent, and
with the name in lower case. The more specific of the two rules decides. A request therefore cannot
bypass a rule by spelling a name differently.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from daemon.acl.policy_parser import Value
from daemon.acl.policy_rules import DENY, PathRule

T = TypeVar("T")

NamedRules = tuple[str, Iterable[PathRule]]
Parameters = Mapping[str, object]
_Lists = Mapping[str, Sequence[Value]]

_STORED_IN_LOWER_CASE = re.compile(r"(?:auth/.+/role|sys/policies/acl|sys/policy)/")
# Endings of the names of parameters that are lists, which may be sent as comma-separated text.
_LIST_ENDINGS = ("policies", "_glob", "_ids", "_groups", "_locations", "_sets", "_cidrs")
_POLICIES = "policies"  # ending of the names of parameters with names of policies


class PathPermission(msgspec.Struct, frozen=True, kw_only=True):
    """The permission at the paths of one rule, merged over all policies that contain the rule."""

    path: str
    capabilities: frozenset[str]  # empty: denied
    allowed: _Lists | None
    denied: _Lists
    required: frozenset[str]
    min_wrap: int
    max_wrap: int
    policies: tuple[str, ...]

    def accepts(self, parameters: Parameters) -> bool:
        """Return whether a write may contain these parameters."""
        # Pairs, because `ttl` and `TTL` in one body are two parameters under one name.
        lowered = [(name.lower(), value) for name, value in parameters.items()]
        if not self.required <= {name for name, _ in lowered}:
            return False
        if any(_is_denied(self.denied, name, value) for name, value in lowered):
            return False
        if self.allowed is None or not lowered:
            return True
        return all(_is_allowed(self.allowed, name, value) for name, value in lowered)

    def wraps_in(self, span: int) -> bool:
        """Return whether a response may be wrapped with this TTL in seconds; 0 means unwrapped."""
        if self.min_wrap and span < self.min_wrap:
            return False
        return not self.max_wrap or 0 < span <= self.max_wrap


def _is_denied(denied: _Lists, name: str, value: object) -> bool:
    if "*" in denied:
        return True
    if name not in denied:
        return False
    # Each element of a list is checked, so that a denied value cannot hide in a list.
    values, limits = [value, *_elements(name, value)], denied[name]
    if name.endswith(_POLICIES):  # a token gets its policies by their names in lower case
        values, limits = list(map(_lowered, values)), list(map(_lowered, limits))
    return not limits or any(_is_among(limits, value) for value in values)


def _lowered(value: T) -> T:
    return value.lower() if isinstance(value, str) else value  # type: ignore[return-value]  # a str


def _elements(name: str, value: object) -> list[object]:
    """Return the elements of a list, or of comma-separated text in a parameter that is a list.

    For any other value, return a list that contains only the value.
    """
    is_list = name.endswith(_LIST_ENDINGS)
    if is_list and isinstance(value, str):
        elements: list[object] = [*value.split(",")]
    else:
        elements = value if isinstance(value, list) else [value]
    if not is_list:
        return elements
    # The elements of a list are stored without enclosing spaces.
    return [element.strip() if isinstance(element, str) else element for element in elements]


def _is_allowed(allowed: _Lists, name: str, value: object) -> bool:
    if name not in allowed:
        return "*" in allowed
    limits = allowed[name]
    if not limits or (isinstance(value, str) and value in limits):
        return True
    return all(_is_among(limits, element) for element in _elements(name, value))


def _is_among(values: Sequence[Value], value: object) -> bool:
    return any(_matches(pattern, value) for pattern in values)


def _matches(pattern: Value, value: object) -> bool:
    """Return whether a value matches a rule's value, which may have `*` at either end."""
    if not isinstance(pattern, str) or not isinstance(value, str):
        return type(pattern) is type(value) and pattern == value
    begins, ends = pattern.startswith("*"), pattern.endswith("*")
    if begins and ends:
        return pattern[1:-1] in value
    if begins:
        return value.endswith(pattern[1:])
    return value.startswith(pattern[:-1]) if ends else value == pattern


# --- selection of the rule ----------------------------------------------------------------------


class PathRules:
    """The path rules of a set of policies."""

    def __init__(self, policies: Iterable[NamedRules]) -> None:
        self._exact: dict[str, PathPermission] = {}
        patterns: list[tuple[tuple[int, ...], str, PathPermission]] = []
        for path, rules in _by_path(policies).items():
            permission = _merged(path, rules)
            if is_pattern(path):
                patterns.append((_rank(path), path, permission))
            else:
                self._exact[path] = permission
        patterns.sort(key=lambda pattern: pattern[:2], reverse=True)
        # The text before the first wildcard excludes most patterns quickly.
        self._patterns = [(path[: rank[0]], compiled) for rank, path, compiled in patterns]

    def find(self, path: str, *, listing: bool = False) -> PathPermission | None:
        """Return the deciding rule for a path.

        The path of a list request ends with a slash, which rules may omit. Patterns that match the
        path without the slash take precedence (source: Vault's recorded responses
        `policy-evaluation`, policies `listnoslash` and `denyglob`).
        """
        permission = self._find(path, listing=listing)
        names = None if path.islower() else _STORED_IN_LOWER_CASE.match(path)
        if names is None:
            return permission
        stored = self._find(names[0] + path[names.end() :].lower(), listing=listing)
        if stored is None or (permission and _specificity(permission) >= _specificity(stored)):
            return permission
        return stored

    def _find(self, path: str, *, listing: bool) -> PathPermission | None:
        bare = path.removesuffix("/") if listing else path
        if permission := self._exact.get(path) or self._exact.get(bare):
            return permission
        return self._pattern(bare) or (self._pattern(path) if bare != path else None)

    def _pattern(self, path: str) -> PathPermission | None:
        segments = path.split("/")
        for head, permission in self._patterns:
            if path.startswith(head) and _covers(permission.path, path, segments):
                return permission
        return None

    def rules(self) -> list[PathPermission]:
        """Return all rules."""
        return [*self._exact.values(), *(permission for _, permission in self._patterns)]


def _by_path(policies: Iterable[NamedRules]) -> Mapping[str, list[tuple[str, PathRule]]]:
    rules_by_path: dict[str, list[tuple[str, PathRule]]] = {}
    for policy, rules in policies:
        for rule in rules:
            rules_by_path.setdefault(rule.path, []).append((policy, rule))
    return rules_by_path


def _specificity(permission: PathPermission) -> tuple[int, ...]:
    """Return a sort key that is higher for more specific rules."""
    return _rank(permission.path) if is_pattern(permission.path) else (len(permission.path) + 1,)


def is_pattern(path: str) -> bool:
    """Return whether a rule is for more than one path."""
    return path.endswith("*") or "+" in path.split("/")


def _rank(path: str) -> tuple[int, ...]:
    """Return a sort key that is higher for more specific patterns."""
    segments = path.split("/")
    first_wildcard = len(path) - 1  # a star can only be at the end
    if "+" in segments:
        first_wildcard = sum(len(segment) + 1 for segment in segments[: segments.index("+")])
    return first_wildcard, not path.endswith("*"), -segments.count("+"), len(path)


def _covers(pattern: str, path: str, segments: Sequence[str]) -> bool:
    open_end = pattern.endswith("*")
    if "+" not in pattern:
        return path.startswith(pattern[:-1])
    pattern_segments = pattern.split("/")
    if len(segments) < len(pattern_segments) or (
        len(segments) > len(pattern_segments) and not open_end
    ):
        return False
    *before, last = pattern_segments
    if any(
        segment not in ("+", wanted_segment)
        for segment, wanted_segment in zip(before, segments, strict=False)
    ):
        return False
    segment_at_end = segments[len(before)]
    return segment_at_end.startswith(last[:-1]) if open_end else last in ("+", segment_at_end)


def _merged(path: str, rules: Sequence[tuple[str, PathRule]]) -> PathPermission:
    words = {word for _, rule in rules for word in rule.capabilities}
    limited = [rule.allowed for _, rule in rules if rule.allowed is not None]
    least = [rule.min_wrap for _, rule in rules if rule.min_wrap]
    most = [rule.max_wrap for _, rule in rules if rule.max_wrap]
    return PathPermission(
        path=path,
        capabilities=frozenset() if DENY in words else frozenset(words),
        allowed=_joined(limited) if limited else None,
        denied=_joined([rule.denied for _, rule in rules]),
        required=frozenset(name.lower() for _, rule in rules for name in rule.required),
        min_wrap=min(least, default=0),
        max_wrap=max(most, default=0),
        policies=tuple(dict.fromkeys(policy for policy, _ in rules)),
    )


def _joined(lists: Iterable[_Lists]) -> _Lists:
    """For each parameter, merge the values from all rules.

    An empty list of values means any value. So if the list in one rule is empty, the merged list is
    empty.
    """
    values_by_name: dict[str, tuple[Value, ...]] = {}
    for parameters in lists:
        for name, values in parameters.items():
            if name in values_by_name and (not values_by_name[name] or not values):
                values_by_name[name] = ()
            else:
                values_by_name[name] = (*values_by_name.get(name, ()), *values)
    return values_by_name
