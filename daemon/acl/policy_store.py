"""Validation of policies and roles."""

from collections.abc import Iterable, Sequence

import msgspec

from daemon.acl.nomad_tokens import NAME, content_hash
from daemon.acl.policy_parser import PolicySyntaxError
from daemon.acl.policy_rules import DENY, NamedRule, PolicyRules, check, parse_policy
from daemon.text.go_format import multi_error
from storage.errors import Malformed
from storage.queries import policies
from storage.read_pool import ReadSnapshot
from storage.records import acl_views as views
from storage.records.acl import BUILT_IN, DEFAULT, AclRole, Policy
from storage.writer import Transaction

_LONGEST_DESCRIPTION = 256


def check_policy(policy: Policy) -> Policy:
    """Return the policy to store. Raises `Malformed`, which lists all errors."""
    if errors := list(_policy_errors(policy)):
        raise Malformed(f"policy 0 invalid: {multi_error(errors)}")
    return msgspec.structs.replace(
        policy, hash=content_hash(policy.name, policy.description, policy.rules)
    )


def _policy_errors(policy: Policy) -> Iterable[str]:
    if not NAME.fullmatch(policy.name):
        yield f"invalid name '{policy.name}'"
    if policy.name in BUILT_IN:
        yield f"invalid name '{policy.name}': it is built in"
    try:
        check(policy.rules)
    except PolicySyntaxError as error:
        yield f"failed to parse rules: Failed to parse ACL Policy: {error}"
    except Malformed as error:
        yield f"failed to parse rules: {error}"
    if len(policy.description) > _LONGEST_DESCRIPTION:
        yield f"description longer than {_LONGEST_DESCRIPTION}"


def put_policy(tx: Transaction, policy: Policy) -> None:
    """Store a policy, replacing one with the same name; increase its version.

    The first stored policy `default` gets version 2, because version 1 is built in.
    """
    before = policies.find(tx, policy.name)
    version = before.version if before else int(policy.name == DEFAULT)
    policies.put(tx, msgspec.structs.replace(policy, version=version + 1))


def check_role(db: ReadSnapshot, role: AclRole) -> AclRole:
    """Return the role to store. Raises `Malformed`, which lists all errors."""
    if errors := list(_role_errors(db, role)):
        raise Malformed(f"role 0 invalid: {multi_error(errors)}")
    names = [link.name for link in role.policies or ()]
    return msgspec.structs.replace(role, hash=content_hash(role.name, role.description, *names))


def _role_errors(db: ReadSnapshot, role: AclRole) -> Iterable[str]:
    if not NAME.fullmatch(role.name):
        yield f"invalid name '{role.name}'"
    if len(role.description) > _LONGEST_DESCRIPTION:
        yield f"description longer than {_LONGEST_DESCRIPTION}"
    if not role.policies:
        yield "at least one policy should be specified"
    for link in role.policies or ():
        if policies.find(db, link.name) is None:
            yield f"cannot find policy {link.name}"
    namesake = policies.role_named(db, role.name)
    if namesake is not None and namesake.id != role.id:
        yield f"role with name {role.name} already exists"


# --- views --------------------------------------------------------------------------------------


def policy_stub(policy: Policy) -> views.PolicyStub:
    """Return a policy as an entry of a list."""
    return views.PolicyStub(
        name=policy.name,
        description=policy.description,
        job_acl=policy.job_acl,
        hash=policy.hash,
        create_index=policy.create_index,
        modify_index=policy.modify_index,
    )


def policy_detail(policy: Policy) -> views.PolicyDetail:
    """Return the full record of a policy."""
    rules = parse_policy(policy.rules)
    return views.PolicyDetail(
        **msgspec.structs.asdict(policy_stub(policy)),
        rules=policy.rules,
        rules_json=_spelled_out(rules, policy.rules),
    )


def _spelled_out(rules: PolicyRules, raw: str) -> views.RulesView:
    levels = {scope: views.LevelPolicy(policy=level) for scope, level in rules.scopes.items()}
    return views.RulesView(
        **levels,  # type: ignore[arg-type]  # the scopes are named like the fields
        host_volumes=_pools(rules.host_volumes),
        namespaces=[_namespace(rule) for rule in rules.namespaces] or None,
        node_pools=_pools(rules.node_pools),
        raw=raw,
    )


def _pools(rules: Sequence[NamedRule]) -> list[views.PoolPolicy] | None:
    return [
        views.PoolPolicy(name=rule.name, policy=rule.policy, capabilities=rule.capabilities or None)
        for rule in rules
    ] or None


def _namespace(rule: NamedRule) -> views.NamedPolicy:
    paths = [
        views.PathPolicy(
            path_spec=variable.path,
            capabilities=(DENY,) if DENY in variable.capabilities else variable.capabilities,
        )
        for variable in rule.variables or ()
    ]
    return views.NamedPolicy(
        name=rule.name,
        policy=rule.policy,
        capabilities=rule.capabilities or None,
        variables=views.VariablesPolicy(paths=paths) if rule.variables is not None else None,
    )
