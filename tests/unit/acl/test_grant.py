"""Permissions of several policies: they add up, a denial wins, the closest name decides."""

import pytest

from daemon.acl.check import (
    ANYONE,
    KNOWN,
    Caller,
    RequiredCapability,
    on_namespace,
    on_object,
    on_variable,
)
from daemon.acl.grant import CapabilitySet, fits
from daemon.acl.policy_rules import parse_policy
from daemon.acl.workload_identity import policy_applies
from storage.records.acl import ANONYMOUS, JobACL, Token
from storage.records.workload import Workload

WORKLOAD = Workload(
    iss="steward",
    sub="sub",
    aud=[],
    iat=0,
    nbf=0,
    jti="1",
    nomad_namespace="default",
    nomad_job_id="web",
    nomad_allocation_id="alloc",
    nomad_group="g",
    nomad_task="t",
)


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


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (JobACL(), False),
        (JobACL(job_id="web"), True),
        (JobACL(job_id="other"), False),
        (JobACL(namespace="default", job_id="web"), True),
        (JobACL(namespace="team", job_id="web"), False),
        (JobACL(job_id="web", group="g"), True),
        (JobACL(job_id="web", group="other"), False),
        (JobACL(job_id="web", group="g", task="t"), True),
        (JobACL(job_id="web", group="g", task="other"), False),
        (JobACL(group="g", task="t"), False),
    ],
)
def test_policy_is_attached_to_the_tasks_of_its_target(target: JobACL, *, expected: bool) -> None:
    assert policy_applies(target, WORKLOAD) is expected


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        (ANYONE, False),
        (KNOWN, True),
        (on_object("read-job"), True),
        (on_object("submit-job"), False),
        (on_object("submit-job", "read-job"), True),
        (on_variable("read"), True),
        (on_variable("write"), False),
        (on_namespace("submit-job"), True),
    ],
)
def test_long_body_is_read_if_a_policy_grants_a_required_capability(
    needs: RequiredCapability, *, expected: bool
) -> None:
    rules = grant(
        """
        namespace "a" {
          capabilities = ["read-job"]
          variables { path "x" { capabilities = ["read"] } }
        }
        """
    )
    assert Caller(Token(accessor="t", created_at=0), rules).may_send_much(needs) is expected


def test_long_body_of_an_anonymous_caller_needs_a_rule() -> None:
    anonymous = Token(accessor=ANONYMOUS, created_at=0)
    assert not Caller(anonymous, grant()).may_send_much(KNOWN)
    assert Caller(anonymous, grant('agent { policy = "read" }')).may_send_much(KNOWN)
    assert Caller(Token(accessor="t", created_at=0), grant()).may_send_much(KNOWN)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ('path "a" { capabilities = ["read"] }', True),
        ('namespace "a" { capabilities = ["read-job"] }', False),
        ('node_pool "a" { capabilities = ["read"] }', False),
        ('host_volume "a" { capabilities = ["mount-readonly"] }', False),
        ('operator { policy = "read" }', False),
    ],
)
def test_grant_is_empty_without_a_rule_of_the_jobs_api(text: str, *, expected: bool) -> None:
    assert grant(text).is_empty is expected
    assert not CapabilitySet((), everything=True).is_empty
