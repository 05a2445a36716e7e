"""Path rules: the most specific one decides; parameters may be limited."""

from typing import Any

import pytest

from daemon.acl.grant import CapabilitySet
from daemon.acl.policy_rules import parse_policy


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("auth/cloudid/role/one", "auth/cloudid/role/o*"),
        ("auth/cloudid/role/two", "auth/cloudid/role/*"),
        ("auth/cloudid/role/", "auth/cloudid/role/*"),
        ("auth/other/role/one", "auth/+/role/one"),
        ("auth/other/role/two", "auth/+/role/+"),
        ("auth/other/role/two/more", "auth/*"),
        ("auth/exact", "auth/exact"),
        ("auth/exacter", "auth/*"),
        ("sys/x/deep/er/path", "sys/+/deep/*"),
        ("auth/x/deep", "auth/*"),
        ("sys/auth", None),
        ("a/*/b", "a/*/b"),
        ("a/x/b", None),
        ("c/+d", "c/+d"),
    ],
)
def test_the_most_specific_rule_decides(path: str, rule: str | None) -> None:
    patterns = (
        *("auth/cloudid/role/*", "auth/cloudid/role/o*", "auth/+/role/one", "auth/+/role/+"),
        *("auth/*", "auth/exact", "sys/+/deep/*", "a/*/b", "c/+d"),
    )
    text = "\n".join(f'path "{pattern}" {{ capabilities = ["read"] }}' for pattern in patterns)
    path_permission = CapabilitySet([("p", parse_policy(text))]).permission(path)
    assert (path_permission.path if path_permission else None) == rule


@pytest.mark.parametrize(
    ("path", "listing", "found"),
    [("a/", True, True), ("a/", False, False), ("a", False, True), ("b/", True, True)],
)
def test_listed_path_works_with_and_without_slash(path: str, *, listing: bool, found: bool) -> None:
    grant = CapabilitySet(
        [("p", parse_policy('path "a" { policy = "read" } path "b/" { policy = "read" }'))]
    )
    assert (grant.permission(path, listing=listing) is not None) is found


def test_policies_for_the_same_path_are_combined() -> None:
    grant = CapabilitySet(
        [
            ("one", parse_policy('path "a" { capabilities = ["read"] }')),
            ("two", parse_policy('path "a" { capabilities = ["list"] }')),
        ]
    )
    assert grant.capabilities("a") == ["list", "read"]
    permission = grant.permission("a")
    assert permission is not None
    assert permission.policies == ("one", "two")


def test_denial_overrides_rules_of_the_same_path_only() -> None:
    grant = CapabilitySet(
        [
            ("one", parse_policy('path "a" { policy = "write" } path "b/c" { policy = "read" }')),
            ("two", parse_policy('path "a" { policy = "deny" } path "b/*" { policy = "deny" }')),
        ]
    )
    assert grant.capabilities("a") == ["deny"]
    assert grant.capabilities("b/c") == ["list", "read"]
    assert grant.capabilities("b/d") == ["deny"]


@pytest.mark.parametrize(
    ("limits", "parameters", "accepted"),
    [
        ("", {"a": 1}, True),
        ("allowed_parameters = {}", {}, True),
        ("allowed_parameters = {}", {"a": 1}, False),
        ('allowed_parameters = { "a" = [] }', {"A": "x"}, True),
        ('allowed_parameters = { "a" = [] }', {"b": "x"}, False),
        ('allowed_parameters = { "a" = ["x", "y*"] }', {"a": "yes"}, True),
        ('allowed_parameters = { "a" = ["x", "y*"] }', {"a": "no"}, False),
        ('allowed_parameters = { "a" = ["x"] }', {"a": ["x", "root"]}, False),
        ('allowed_parameters = { "a" = ["x"] }', {"a": ["x"]}, True),
        ('allowed_parameters = { "a" = [5] }', {"a": 5}, True),
        ('allowed_parameters = { "a" = [true] }', {"a": 1}, False),
        ('allowed_parameters = { "a" = ["x"] "*" = [] }', {"b": "anything"}, True),
        ('allowed_parameters = { "a" = ["x"] "*" = [] }', {"a": "y"}, False),
        ('denied_parameters = { "a" = [] }', {"a": "x"}, False),
        ('denied_parameters = { "a" = ["root*"] }', {"a": "rooty"}, False),
        ('denied_parameters = { "a" = ["root*"] }', {"a": ["x", "root"]}, False),
        ('denied_parameters = { "a" = ["root*"] }', {"a": "x"}, True),
        ('denied_parameters = { "*" = [] }', {"a": "x"}, False),
        ('allowed_parameters = { "a" = ["*mid*"] }', {"a": "amidst"}, True),
        ('allowed_parameters = { "a" = ["*mid*"] }', {"a": "aids"}, False),
        ('allowed_parameters = { "a" = ["*end"] }', {"a": "the end"}, True),
        ('allowed_parameters = { "a" = ["*end"] }', {"a": "nd"}, False),
        ('allowed_parameters = { "a" = [] } denied_parameters = { "a" = [] }', {"a": 1}, False),
        ('denied_parameters = { "a" = ["root"] }', {"a": "root", "A": "x"}, False),
        ('allowed_parameters = { "a" = ["x"] }', {"a": "y", "A": "x"}, False),
        ('denied_parameters = { "policies" = ["ops"] }', {"policies": "x, ops"}, False),
        ('denied_parameters = { "policies" = ["ops"] }', {"policies": ["x", "Ops"]}, False),
        ('denied_parameters = { "policies" = ["Ops*"] }', {"policies": "x,opsx"}, False),
        ('denied_parameters = { "policies" = ["ops"] }', {"policies": "x,y"}, True),
        ('denied_parameters = { "policies" = ["ops"] }', {"policies": ["x", " ops "]}, False),
        ('denied_parameters = { "bound_x_ids" = ["a"] }', {"bound_x_ids": ["\ta"]}, False),
        ('denied_parameters = { "text" = ["ops"] }', {"text": [" ops"]}, True),
        ('allowed_parameters = { "policies" = ["ops"] }', {"policies": [" ops", "ops"]}, True),
        ('denied_parameters = { "text" = ["ops"] }', {"text": "x,ops"}, True),
        ('allowed_parameters = { "policies" = ["a*"] }', {"policies": "ab,ops"}, False),
        ('allowed_parameters = { "policies" = ["a*"] }', {"policies": ["ab,ops"]}, True),
        ('allowed_parameters = { "policies" = ["a*"] }', {"policies": "ab, ac"}, True),
        ('allowed_parameters = { "policies" = ["a", "b"] }', {"policies": "a,b"}, True),
        ('allowed_parameters = { "policies" = ["a,b"] }', {"policies": "a,b"}, True),
        ('allowed_parameters = { "bound_group_ids" = ["a*"] }', {"bound_group_ids": "a,*"}, False),
        ('allowed_parameters = { "text" = ["a*"] }', {"text": "a,b"}, True),
        ('required_parameters = ["a"]', {"b": 1}, False),
        ('required_parameters = ["A"]', {"a": 1}, True),
    ],
)
def test_parameters_are_checked(limits: str, parameters: dict[str, Any], *, accepted: bool) -> None:
    grant = CapabilitySet(
        [("p", parse_policy(f'path "x" {{ capabilities = ["update"] {limits} }}'))]
    )
    permission = grant.permission("x")
    assert permission is not None
    assert permission.accepts(parameters) is accepted


@pytest.mark.parametrize(
    ("limits", "span", "accepted"),
    [
        ("", 0, True),
        ("", 60, True),
        ('min_wrapping_ttl = "1m"', 0, False),
        ('min_wrapping_ttl = "1m"', 60, True),
        ('max_wrapping_ttl = "1m"', 0, False),
        ('max_wrapping_ttl = "1m"', 1, True),
        ('max_wrapping_ttl = "1m"', 61, False),
        ('max_wrapping_ttl = "1m"', 60, True),
    ],
)
def test_wrapping_ttl_is_bounded(limits: str, span: int, *, accepted: bool) -> None:
    grant = CapabilitySet([("p", parse_policy(f'path "x" {{ capabilities = ["read"] {limits} }}'))])
    permission = grant.permission("x")
    assert permission is not None
    assert permission.wraps_in(span) is accepted


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("auth/cloudid/role/one", "auth/cloudid/role/one"),
        ("auth/cloudid/role/ONE", "auth/cloudid/role/one"),
        ("auth/team/dir/role/One", "auth/team/dir/role/on*"),
        ("auth/cloudid/role/MyApp", "auth/cloudid/role/MyApp"),
        ("auth/cloudid/role/MYAPP", "auth/cloudid/role/*"),
        ("auth/CLOUDID/role/one", None),
        ("sys/policies/acl/Ops", "sys/policies/acl/ops"),
        ("sys/policy/OPS", "sys/policy/ops"),
        ("sys/auth/Ops", "sys/auth/*"),
    ],
)
def test_more_specific_rule_for_the_lower_case_name_decides(path: str, rule: str | None) -> None:
    """Roles and policies have lower-case names, so another spelling must not avoid a rule."""
    rules = (
        *("auth/cloudid/role/*", "auth/cloudid/role/one", "auth/cloudid/role/MyApp"),
        *("auth/team/dir/role/*", "auth/team/dir/role/on*", "sys/policies/acl/*"),
        *("sys/policies/acl/ops", "sys/policy/*", "sys/policy/ops", "sys/auth/*", "sys/auth/ops"),
    )
    text = "\n".join(f'path "{path}" {{ capabilities = ["read"] }}' for path in rules)
    permission = CapabilitySet([("p", parse_policy(text))]).permission(path)
    assert (permission.path if permission else None) == rule
