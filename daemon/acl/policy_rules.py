"""Policy language: parsing and validation of rules.

Both APIs use the same language: path rules are for the Vault API, all other rules for the jobs API.
A policy with an unknown key or capability is rejected. Ignoring a rule silently would allow or deny
less than the author of the policy expects.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock

import msgspec

from daemon.acl.policy_parser import PolicyObject, PolicySyntaxError, Value, parse_policy_text
from daemon.text.go_format import multi_error
from storage.errors import Malformed
from storage.records.durations import seconds
from storage.records.identity import Alias, Entity, Group

DENY = "deny"
_MOST_PARSED = 4 * 1024 * 1024  # characters of cached policies

# --- keywords -----------------------------------------------------------------------------------

PATH_CAPABILITIES = (
    *("create", "read", "update", "delete", "list", "patch", "scan", "sudo"),
    DENY,
)
_WRITE = ("create", "read", "update", "delete", "list")
_OLD_POLICIES = {
    DENY: (DENY,),
    "read": ("read", "list"),
    "write": _WRITE,
    "sudo": (*_WRITE, "sudo"),
}
_PATH_KEYS = frozenset(
    {
        *("policy", "capabilities", "allowed_parameters", "denied_parameters"),
        *("required_parameters", "min_wrapping_ttl", "max_wrapping_ttl"),
    }
)

_NAMESPACE_READ = (
    *("list-jobs", "parse-job", "read-job", "csi-list-volume", "csi-read-volume"),
    *("read-job-scaling", "list-scaling-policies", "read-scaling-policy", "host-volume-read"),
)
_NAMESPACE_WRITE = (
    *_NAMESPACE_READ,
    *("scale-job", "submit-job", "dispatch-job", "read-logs", "read-fs", "alloc-exec"),
    *("alloc-lifecycle", "csi-mount-volume", "csi-write-volume", "submit-recommendation"),
    *("host-volume-create", "host-volume-read"),  # listed twice, as in Nomad
)
_NAMESPACE_SCALE = (
    *("list-scaling-policies", "read-scaling-policy", "read-job-scaling", "scale-job", "read-job"),
)
_NAMESPACE = frozenset(
    {
        *_NAMESPACE_WRITE,
        *("alloc-node-exec", "csi-register-plugin", "policy-override", "sentinel-override"),
        "read-secrets",  # Steward's own: names and sizes of files in secret directories
        "read-raw-logs",  # Steward's own: output of tasks with its secrets
        *("host-volume-register", "host-volume-write", "host-volume-delete"),
        *("register-job", "plan-job", "evaluate-job", "revert-job", "stable-job"),
        *("tag-job-version", "purge-job", "deregister-job", "exec-unfiltered"),
        *("freeze-jobs", "override-freeze"),  # Steward's own: freezes
        "write-calendar",  # Steward's own: days on which jobs may begin
        *("steer-run", "approve-run"),  # Steward's own: operations on runs of workflows
    }
)
_VARIABLES = frozenset({"read", "list", "write", "destroy", DENY})


class _Kind(msgspec.Struct, frozen=True):
    """A kind of block with a label, and its possible contents."""

    block: str
    noun: str
    struct: str  # name of the kind in Nomad's error texts
    policies: Mapping[str, tuple[str, ...]]
    capabilities: frozenset[str]
    name_is_valid: Callable[[str], bool]


def _is_name(text: str) -> bool:
    """Return whether a string can name a namespace or pool in a rule; `*` is a wildcard."""
    plain = text.replace("*", "").replace("-", "").replace("_", "")
    return 1 <= len(text) <= 128 and (plain.isalnum() or not plain) and text.isascii()


_NAMESPACES = _Kind(
    "namespace",
    "namespace",
    "NamespacePolicy",
    {DENY: (DENY,), "read": _NAMESPACE_READ, "write": _NAMESPACE_WRITE, "scale": _NAMESPACE_SCALE},
    _NAMESPACE,
    _is_name,
)
_POOLS = _Kind(
    "node_pool",
    "node pool",
    "NodePoolPolicy",
    {DENY: (DENY,), "read": ("read",), "write": ("delete", "read", "write")},
    frozenset({"delete", "read", "write"}),
    _is_name,
)
_VOLUMES = _Kind(
    "host_volume",
    "host volume",
    "HostVolumePolicy",
    {DENY: (DENY,), "read": ("mount-readonly",), "write": ("mount-readonly", "mount-readwrite")},
    frozenset({"mount-readonly", "mount-readwrite"}),
    _is_name,
)
# block -> possible levels of its `policy`
_SCOPES: Mapping[str, tuple[str, ...]] = {
    "agent": (DENY, "read", "write"),
    "node": (DENY, "read", "write"),
    "operator": (DENY, "read", "write"),
    "quota": (DENY, "read", "write"),
    "plugin": (DENY, "list", "read"),
}
_SLICES = ("namespace", "node_pool", "host_volume")  # kinds that are lists in Nomad's error texts
# keys with a single value in a block
_ONCE = frozenset({"policy", "min_wrapping_ttl", "max_wrapping_ttl"})
_TOP = frozenset({"path", "namespace", "node_pool", "host_volume", *_SCOPES})


# --- rules --------------------------------------------------------------------------------------


class PathRule(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities at the matching paths.

    An empty list of values for a parameter means that any value is allowed.
    """

    path: str
    capabilities: tuple[str, ...]
    allowed: Mapping[str, Sequence[Value]] | None = None  # None: all parameters
    denied: Mapping[str, Sequence[Value]] = {}
    required: tuple[str, ...] = ()
    min_wrap: int = 0  # seconds
    max_wrap: int = 0


class VariableRule(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities on variables with matching paths."""

    path: str
    capabilities: tuple[str, ...]


class NamedRule(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities in namespaces, pools or volumes with matching names."""

    name: str
    policy: str = ""
    capabilities: tuple[str, ...] = ()
    variables: tuple[VariableRule, ...] | None = None


class PolicyRules(msgspec.Struct, frozen=True, kw_only=True):
    """All rules of one policy."""

    paths: tuple[PathRule, ...] = ()
    namespaces: tuple[NamedRule, ...] = ()
    node_pools: tuple[NamedRule, ...] = ()
    host_volumes: tuple[NamedRule, ...] = ()
    scopes: Mapping[str, str] = {}  # agent, node, operator, quota, plugin -> level


class _ParsedPolicies:
    """A thread-safe cache of parsed policies, by their text.

    A policy is parsed in a thread before it is stored. So the event loop need not parse the policy
    at its first use.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._rules: OrderedDict[str, PolicyRules] = OrderedDict()
        self._length = 0

    def find(self, text: str) -> "PolicyRules | None":
        with self._lock:
            rules = self._rules.get(text)
            if rules is not None:
                self._rules.move_to_end(text)
            return rules

    def store(self, text: str, rules: "PolicyRules") -> None:
        with self._lock:
            if text not in self._rules:
                self._length += len(text)
            self._rules[text] = rules
            while self._length > _MOST_PARSED:
                oldest, _ = self._rules.popitem(last=False)
                self._length -= len(oldest)


_PARSED = _ParsedPolicies()


def parse_policy(text: str) -> PolicyRules:
    """Return the rules in a text, from the cache if possible. Raises `Malformed`."""
    rules = _PARSED.find(text)
    if rules is None:
        rules = _parsed(text)
        _PARSED.store(text, rules)
    return rules


def _parsed(text: str) -> PolicyRules:
    tree = parse_policy_text(text)
    _check_keys(tree, _TOP, "")
    return PolicyRules(
        paths=tuple(_path_rule(path, body) for path, body in tree.blocks("path")),
        namespaces=tuple(_named_rules(tree, _NAMESPACES)),
        node_pools=tuple(_named_rules(tree, _POOLS)),
        host_volumes=tuple(_named_rules(tree, _VOLUMES)),
        scopes=dict(_scopes(tree)),
    )


def check(text: str) -> None:
    """Raise `Malformed` for a text that is not a policy, or has a part without effect.

    Such a part is a rule without braces, or a template that never has a value. A repeated value is
    such a part too, because only the last one would count.
    """
    tree = parse_policy_text(text)
    for policy_item in tree.items:
        if not _is_block(policy_item.keys, policy_item.value):
            named = policy_item.keys[0] in _SLICES and policy_item.keys[1:] == ()
            if named and policy_item.column and not isinstance(policy_item.value, list):
                position = f"At {policy_item.line}:{policy_item.column}"
                raise PolicySyntaxError(f"{position}: unknown slice type: *ast.LiteralType")
            raise Malformed(f"{' '.join(policy_item.keys)}: write a block in braces, not a value")
    rules = parse_policy(text)
    if problems := [*_repetitions(tree, ""), *_unknown_templates(rules)]:
        raise Malformed(multi_error(problems))


def _repetitions(body: PolicyObject, where: str) -> Iterator[str]:
    """Yield an error for each repeated value; HCL would silently keep the last value.

    `where` is the prefix of the errors: the enclosing blocks.
    """
    texts_by_name: dict[str, list[str]] = {}
    for policy_item in body.items:
        name, values = (
            policy_item.keys[0],
            policy_item.value if isinstance(policy_item.value, list) else [policy_item.value],
        )
        if (
            name in _ONCE
            and policy_item.keys == (name,)
            and not isinstance(policy_item.value, PolicyObject)
        ):
            texts_by_name.setdefault(name, []).append(str(policy_item.value))
        labels = "".join(f' "{label}"' for label in policy_item.keys[1:])
        for value in values:
            if isinstance(value, PolicyObject):
                yield from _repetitions(value, f"{where}{name}{labels}: ")
                if name in _SCOPES and not where:
                    texts_by_name.setdefault(name, []).append(_text(value, "policy", where))
    for name, texts in texts_by_name.items():
        if len(texts) > 1:
            named = ", ".join(f'"{text}"' for text in texts[:3])
            yield f"{where}{name} is given {len(texts)} times, as {named}: give it once"


def _is_block(keys: tuple[str, ...], value: Value) -> bool:
    if isinstance(value, list):
        return all(_is_block(keys, element) for element in value)
    if not isinstance(value, PolicyObject):
        return value is None or keys[0] not in _TOP
    if keys[0] in (*_SLICES, "path") and len(keys) == 1:
        return all(
            _is_block((*keys, *policy_item.keys), policy_item.value) for policy_item in value.items
        )
    return True


def _check_keys(tree: PolicyObject, valid_keys: frozenset[str], where: str) -> None:
    wrong = [
        f'{where}invalid key "{policy_item.keys[0]}" on line {policy_item.line}'
        for policy_item in tree.items
        if policy_item.keys[0] not in valid_keys
    ]
    if wrong:
        raise Malformed(multi_error(wrong))


# --- path rules ---------------------------------------------------------------------------------


def _path_rule(path: str, body: PolicyObject) -> PathRule:
    where = f'path "{path}": '
    _check_keys(body, _PATH_KEYS, where)
    if "+*" in path:
        raise Malformed(f"{where}invalid use of wildcards ('+*' is forbidden)")
    capabilities = list(_old_policy(body, where))
    for text in _texts(body, "capabilities", where):
        if text not in PATH_CAPABILITIES:
            raise Malformed(f'{where}invalid capability "{text}"')
        capabilities.append(text)
    least, most = _wrapping_ttl(body, "min_", where), _wrapping_ttl(body, "max_", where)
    if most and most < least:
        raise Malformed(f"{where}max_wrapping_ttl cannot be less than min_wrapping_ttl")
    return PathRule(
        path=path.removeprefix("/"),
        capabilities=(DENY,) if DENY in capabilities else tuple(dict.fromkeys(capabilities)),
        allowed=_parameters(body, "allowed_parameters", where),
        denied=_parameters(body, "denied_parameters", where) or {},
        required=tuple(_texts(body, "required_parameters", where)),
        min_wrap=least,
        max_wrap=most,
    )


def _old_policy(body: PolicyObject, where: str) -> tuple[str, ...]:
    name = _text(body, "policy", where)
    if name and name not in _OLD_POLICIES:
        raise Malformed(f'{where}invalid policy "{name}"')
    return _OLD_POLICIES.get(name, ())


def _parameters(body: PolicyObject, key: str, where: str) -> dict[str, Sequence[Value]] | None:
    values_by_name: dict[str, list[Value]] | None = None
    for policy_item in body.each(key):  # HCL joins repeated objects, and lists of repeated names
        if not isinstance(policy_item.value, PolicyObject):
            raise Malformed(f"{where}{key} must be an object of lists")
        values_by_name = {} if values_by_name is None else values_by_name
        for policy in policy_item.value.items:
            if not isinstance(policy.value, list):
                raise Malformed(f'{where}{key}: the value of "{policy.keys[0]}" must be a list')
            values_by_name.setdefault(policy.keys[0].lower(), []).extend(policy.value)
    return (
        None
        if values_by_name is None
        else {name: tuple(values) for name, values in values_by_name.items()}
    )


def _wrapping_ttl(body: PolicyObject, end: str, where: str) -> int:
    policy_item = body.find(f"{end}wrapping_ttl")
    if policy_item is None:
        return 0
    ttl = seconds(policy_item.value) if isinstance(policy_item.value, str | int) else None
    if ttl is None or ttl < 0:
        raise Malformed(
            f"{where}error parsing {end}wrapping_ttl: {policy_item.value!r} is not a duration"
        )
    return ttl


# --- templates of paths --------------------------------------------------------------------------

_PLACE = re.compile(r"\{\{\s*identity\.(.+?)\s*\}\}")
_KNOWN_TEMPLATE = re.compile(
    r"entity\.(?:id|name|metadata\..+"
    r"|aliases\.[^.]+\.(?:id|name|metadata\.app_id|custom_metadata\..+))"
    r"|groups\.ids\.[^.]+\.(?:name|metadata\..+)"
    r"|groups\.names\..+\.(?:id|metadata\..+)"
)
_CLAIMED = "app_id"  # the only metadata of an alias that the directory has signed


class IdentityDetails(msgspec.Struct, frozen=True):
    """The aliases of an entity, and all groups that contain it."""

    aliases: Sequence[Alias] = ()
    groups: Sequence[Group] = ()


def needs_details(rules: PolicyRules) -> bool:
    """Return whether a template names an alias or a group."""
    names = (match[1] for rule in rules.paths for match in _PLACE.finditer(rule.path))
    return any(name.startswith(("entity.aliases.", "groups.")) for name in names)


def expand_identity_templates(
    rules: PolicyRules, entity: Entity | None, details: IdentityDetails
) -> PolicyRules:
    """Return rules filled in with an identity's values, without rules that lack a value."""
    if not any("{{" in rule.path for rule in rules.paths):
        return rules
    values = _values(entity, details) if entity else {}
    paths = (
        msgspec.structs.replace(
            rule, path=_PLACE.sub(lambda match: values.get(match[1], "{{"), rule.path)
        )
        for rule in rules.paths
    )
    return msgspec.structs.replace(
        rules, paths=tuple(rule for rule in paths if "{{" not in rule.path)
    )


def _values(entity: Entity, details: IdentityDetails) -> dict[str, str]:
    """Return the template values of an identity, without values that could be a pattern.

    A login can choose the other metadata of its alias, so a template cannot name them.
    """
    values = {"entity.id": entity.id, "entity.name": entity.name}
    values |= _members("entity.metadata", entity.metadata)
    for alias in details.aliases:
        prefix = f"entity.aliases.{alias.mount}"
        values |= {f"{prefix}.id": alias.id, f"{prefix}.name": alias.name}
        values[f"{prefix}.metadata.{_CLAIMED}"] = alias.metadata.get(_CLAIMED, "")
        values |= _members(f"{prefix}.custom_metadata", alias.custom_metadata)
    for group in details.groups:
        by_id, by_name = f"groups.ids.{group.id}", f"groups.names.{group.name}"
        values |= {f"{by_id}.name": group.name, f"{by_name}.id": group.id}
        values |= _members(f"{by_id}.metadata", group.metadata)
        values |= _members(f"{by_name}.metadata", group.metadata)
    return {key: value for key, value in values.items() if value and not set("/*+{") & set(value)}


def _members(prefix: str, metadata: Mapping[str, str] | None) -> dict[str, str]:
    return {f"{prefix}.{key}": value for key, value in (metadata or {}).items()}


def _unknown_templates(rules: PolicyRules) -> Iterator[str]:
    """Yield an error for each template that never has a value: its rule would have no effect."""
    for rule in rules.paths:
        rest = _PLACE.sub(
            lambda match: "" if _KNOWN_TEMPLATE.fullmatch(match[1]) else match[0], rule.path
        )
        if "{{" in rest:
            yield (
                f'path "{rule.path}": unknown template: use identity.entity.id, name or '
                "metadata.KEY, identity.entity.aliases.ACCESSOR.id, name, metadata.app_id or "
                "custom_metadata.KEY, or the id, name or metadata.KEY of identity.groups.ids.ID or "
                "identity.groups.names.NAME"
            )


# --- the jobs API -------------------------------------------------------------------------------


def _named_rules(tree: PolicyObject, kind: _Kind) -> Iterator[NamedRule]:
    for name, body in tree.blocks(kind.block):
        yield _named_rule(name, body, kind)


def _named_rule(name: str, body: PolicyObject, kind: _Kind) -> NamedRule:
    where = f'{kind.block} "{name}": '
    valid_keys = {"policy", "capabilities"} | ({"variables"} if kind is _NAMESPACES else set())
    _check_keys(body, frozenset(valid_keys), where)
    policy = _text(body, "policy", where)
    capabilities = tuple(_texts(body, "capabilities", where))
    variables = tuple(_variables(body, where)) if body.find("variables") else None
    rule_shown = _go_struct(kind, name, policy, capabilities)
    if not kind.name_is_valid(name):
        raise Malformed(f"Invalid {kind.noun} name: {rule_shown}")
    if policy and policy not in kind.policies:
        raise Malformed(f"Invalid {kind.noun} policy: {rule_shown}")
    for text in capabilities:
        if text not in kind.capabilities and text != DENY:
            raise Malformed(f"Invalid {kind.noun} capability '{text}': {rule_shown}")
    return NamedRule(
        name=name,
        policy=policy,
        capabilities=(*capabilities, *kind.policies.get(policy, ())),
        variables=variables,
    )


def _variables(body: PolicyObject, where: str) -> Iterator[VariableRule]:
    for block in body.plain_blocks("variables"):
        _check_keys(block, frozenset({"path"}), f"{where}variables: ")
        for path, inner in block.blocks("path"):
            _check_keys(inner, frozenset({"capabilities"}), f'{where}path "{path}": ')
            capabilities = tuple(_texts(inner, "capabilities", where))
            if not path:
                raise Malformed(f"{where}variables: a path must not be empty")
            for text in capabilities:
                if text not in _VARIABLES:
                    raise Malformed(f"Invalid variable capability '{text}' for path {path!r}")
            # The capability to read a variable includes the knowledge that it exists.
            implied = ("list",) if "read" in capabilities and "list" not in capabilities else ()
            yield VariableRule(path=path, capabilities=(*capabilities, *implied))


def _scopes(tree: PolicyObject) -> Iterator[tuple[str, str]]:
    for block, levels in _SCOPES.items():
        for body in tree.plain_blocks(block):
            _check_keys(body, frozenset({"policy"}), f"{block}: ")
            level = _text(body, "policy", f"{block}: ")
            if level not in levels:
                struct = f"{block.capitalize()}Policy"
                raise Malformed(f'Invalid {block} policy: &acl.{struct}{{Policy:"{level}"}}')
            yield block, level


def _go_struct(kind: _Kind, name: str, policy: str, capabilities: Sequence[str]) -> str:
    """Format a rule as in Nomad's errors.

    `name` selects the objects of the rule, and `policy` is its access level. Source: Nomad's
    recorded responses `acl-00-bootstrap-policies-tokens`.
    """
    quoted = ", ".join(f'"{capability}"' for capability in capabilities)
    listed = f"[]string{{{quoted}}}" if capabilities else "[]string(nil)"
    more = ", Variables:(*acl.VariablesPolicy)(nil)" if kind is _NAMESPACES else ""
    return f'&acl.{kind.struct}{{Name:"{name}", Policy:"{policy}", Capabilities:{listed}{more}}}'


# --- values -------------------------------------------------------------------------------------


def _text(body: PolicyObject, key: str, where: str) -> str:
    policy_item = body.find(key)
    if policy_item is None:
        return ""
    if not isinstance(policy_item.value, str):
        raise Malformed(f"{where}{key} must be a string")
    return policy_item.value


def _texts(body: PolicyObject, key: str, where: str) -> list[str]:
    """Return the strings in the list of a key. If the key is repeated, its lists are joined.

    Raises `Malformed`; `where` is the prefix of the error.
    """
    values: list[Value] = []
    for policy_item in body.each(key):
        values += policy_item.value if isinstance(policy_item.value, list) else [policy_item.value]
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) != len(values):
        raise Malformed(f"{where}{key} must be a list of strings")
    return texts
