"""Permissions of several policies: they add up, a denial wins, the closest name decides."""

import pytest

from daemon.acl.check import Caller, on_namespace
from daemon.acl.grant import CapabilitySet, fits
from daemon.acl.policy_rules import parse_policy
from storage.records.acl import Token


def grant(*texts: str) -> CapabilitySet:
    return CapabilitySet([(f"p{number}", parse_policy(text)) for number, text in enumerate(texts)])


def test_nothing_is_allowed_without_a_policy() -> None:
    nothing = grant()
    assert not nothing.may("default", "read-job")
    assert not nothing.may_anywhere("read-job")
    assert not nothing.knows("default")
    assert not nothing.may_in("agent", "read")
    assert not nothing.may_with_variable("default", "a", "read")
    assert nothing.capabilities("sys/auth") == ["deny"]


def test_management_token_has_all_permissions() -> None:
    all_of_it = CapabilitySet((), everything=True)
    assert all_of_it.may("anything", "submit-job")
    assert all_of_it.knows("anything")
    assert all_of_it.may_in("operator", "write")
    assert all_of_it.may_with_variable("default", "a", "destroy")
    assert all_of_it.may_with_pool("p", "delete")
    assert all_of_it.may_with_volume("v", "mount-readwrite")
    assert all_of_it.capabilities("sys/auth") == ["root"]


def test_policies_for_the_same_namespace_are_combined() -> None:
    both = grant(
        'namespace "a" { capabilities = ["read-job"] }',
        'namespace "a" { capabilities = ["list-jobs"] }',
    )
    assert both.may("a", "read-job")
    assert both.may("a", "list-jobs")
    assert not both.may("a", "submit-job")
    assert both.may("a", "submit-job", "list-jobs")


def test_denial_overrides_other_policies() -> None:
    both = grant('namespace "a" { policy = "write" }', 'namespace "a" { policy = "deny" }')
    assert not both.may("a", "read-job")
    assert not both.knows("a")


@pytest.mark.parametrize(
    ("namespace", "allowed"),
    [("team-a", True), ("team-b", False), ("team-a-x", True), ("team", False), ("other", False)],
)
def test_most_specific_name_decides(namespace: str, *, allowed: bool) -> None:
    rules = grant(
        """
        namespace "*"       { policy = "deny" }
        namespace "team-*"  { policy = "read" }
        namespace "team-b*" { policy = "deny" }
        """
    )
    assert rules.may(namespace, "read-job") is allowed


def test_star_in_a_request_is_no_pattern() -> None:
    one = grant('namespace "a" { policy = "read" }')
    assert not one.may("*", "read-job")
    assert one.may_anywhere("read-job")
    assert grant('namespace "*" { policy = "read" }').may("*", "read-job")


@pytest.mark.parametrize(
    ("texts", "level", "allowed"),
    [
        (['node { policy = "read" }'], "read", True),
        (['node { policy = "read" }'], "write", False),
        (['node { policy = "write" }'], "read", True),
        (['node { policy = "write" }', 'node { policy = "read" }'], "write", True),
        (['node { policy = "write" }', 'node { policy = "deny" }'], "read", False),
        (['node { policy = "deny" }', 'node { policy = "write" }'], "read", False),
        (['agent { policy = "write" }'], "read", False),
    ],
)
def test_access_levels_are_combined(texts: list[str], level: str, *, allowed: bool) -> None:
    assert grant(*texts).may_in("node", level) is allowed


@pytest.mark.parametrize(
    ("namespace", "path", "capability", "allowed"),
    [
        ("default", "app/x", "read", True),
        ("default", "app/x", "list", True),
        ("default", "app/x", "write", False),
        ("default", "app/secret", "read", False),
        ("default", "other", "read", False),
        ("team-a", "app/x", "destroy", True),
    ],
)
def test_variables_have_separate_rules(
    namespace: str, path: str, capability: str, *, allowed: bool
) -> None:
    rules = grant(
        """
        namespace "default" {
            policy = "write"
            variables {
                path "app/*"      { capabilities = ["read"] }
                path "app/secret" { capabilities = ["deny"] }
            }
        }
        namespace "team-*" { variables { path "*" { capabilities = ["write", "destroy"] } } }
        """
    )
    assert rules.may_with_variable(namespace, path, capability) is allowed


def test_both_names_of_a_capability_are_equal() -> None:
    assert grant('namespace "a" { capabilities = ["sentinel-override"] }').may(
        "a", "policy-override"
    )


@pytest.mark.parametrize(
    ("pattern", "text", "answer"),
    [
        ("", "", True),
        ("*", "", True),
        ("a", "ab", False),
        ("a*", "a", True),
        ("*a", "ba", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("*ab*ab", "ab", False),
        ("a*b*", "ac", False),
        ("a*b*c*", "abd", False),
    ],
)
def test_star_matches_any_text(pattern: str, text: str, *, answer: bool) -> None:
    assert fits(pattern, text) is answer


@pytest.mark.parametrize(
    ("capability", "namespace", "job_id", "expected"),
    [
        ("read-job", "default", "web", True),
        ("read-job-scaling", "default", "web", True),
        ("submit-job", "default", "web", False),
        ("read-job", "default", "other", False),
        ("read-job", "other", "web", False),
    ],
)
def test_task_can_read_its_own_job_without_a_policy(
    capability: str, namespace: str, job_id: str, expected: bool
) -> None:
    task = Caller(Token(accessor="t", created_at=0), grant(), ("default", "web"))
    assert task.has(on_namespace(capability), namespace, job_id) is expected


def test_policy_of_a_task_applies_to_its_own_job() -> None:
    rules = grant('namespace "default" { capabilities = ["submit-job"] }')
    task = Caller(Token(accessor="t", created_at=0), rules, ("default", "web"))
    assert task.has(on_namespace("submit-job"), "default", "web")
