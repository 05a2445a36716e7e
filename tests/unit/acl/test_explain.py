"""Explanations of allowed requests: they name the rule that decides."""

import pytest

from daemon.acl.builtin import NOBODY
from daemon.acl.check import ANYONE, KNOWN, MANAGEMENT, Caller
from daemon.acl.explain import AccessDecision, RequestedCapability, explain
from daemon.acl.grant import CapabilitySet
from daemon.acl.policy_rules import parse_policy
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.web.rights import RouteRights
from storage.errors import NotFound

RIGHTS = RouteRights(ROUTES, ENDPOINTS)
POLICIES = {
    "jobs": """
        namespace "*"      { policy = "deny" }
        namespace "team-*" { policy = "read" variables { path "app/*" { capabilities = ["read"] } } }
        node { policy = "read" }
    """,
    "secrets": """
        path "auth/cloudid/*"      { capabilities = ["read", "list"] }
        path "auth/cloudid/config" { capabilities = ["deny"] }
        path "sys/auth/*"          { capabilities = ["read"] }
    """,
}
CALLER = Caller(
    NOBODY, CapabilitySet([(name, parse_policy(text)) for name, text in POLICIES.items()])
)


def right(method: str, target: str) -> RequestedCapability:
    return RIGHTS.of(method, target, lambda mount: mount == "cloudid/")


def why(method: str, target: str) -> AccessDecision:
    return explain(CALLER, right(method, target))


@pytest.mark.parametrize(
    ("method", "target", "allowed", "rule", "policies"),
    [
        ("GET", "/v1/jobs?namespace=team-a", True, 'namespace "team-*"', ("jobs",)),
        ("GET", "/v1/jobs", False, 'namespace "*"', ("jobs",)),
        ("GET", "/v1/jobs?namespace=*", True, 'namespace "team-*"', ("jobs",)),
        ("POST", "/v1/jobs?namespace=team-a", False, 'namespace "team-*"', ("jobs",)),
        ("GET", "/v1/nodes", True, "node", ("jobs",)),
        ("GET", "/v1/agent/self", False, "", ()),
        (
            "GET",
            "/v1/var/app/x?namespace=team-a",
            True,
            'variable "team-*" path "app/*"',
            ("jobs",),
        ),
        ("GET", "auth/cloudid/role/one", True, 'path "auth/cloudid/*"', ("secrets",)),
        ("LIST", "auth/cloudid/role", True, 'path "auth/cloudid/*"', ("secrets",)),
        ("GET", "/v1/auth/cloudid/role?list=true", True, 'path "auth/cloudid/*"', ("secrets",)),
        ("POST", "auth/cloudid/role/one", False, 'path "auth/cloudid/*"', ("secrets",)),
        ("GET", "auth/cloudid/config", False, 'path "auth/cloudid/config"', ("secrets",)),
        ("GET", "sys/auth/cloudid", False, 'path "sys/auth/*"', ("secrets",)),
        ("GET", "sys/policies/acl/x", False, "", ()),
    ],
)
def test_deciding_rule_is_named(
    method: str, target: str, rule: str, policies: tuple[str, ...], *, allowed: bool
) -> None:
    found = why(method, target)
    assert (found.allowed, found.rule, found.policies) == (allowed, rule, policies)


def test_needed_capability_is_named() -> None:
    assert why("GET", "/v1/job/web").needs == "read-job on the namespace default"
    assert why("GET", "sys/auth/cloudid").needs == "read and sudo at sys/auth/cloudid"
    assert why("CREATE", "auth/cloudid/role/new").needs == "create at auth/cloudid/role/new"
    assert why("GET", "/v1/nodes").needs == "read on node"


@pytest.mark.parametrize("needs", [ANYONE, KNOWN])
def test_some_requests_need_no_capability(needs: object) -> None:
    found = explain(CALLER, RequestedCapability(needs=needs, namespace="default"))
    assert found.allowed


def test_a_management_token_needs_no_rule() -> None:
    all_of_it = Caller(NOBODY, CapabilitySet((), everything=True))
    found = explain(all_of_it, right("POST", "/v1/acl/token"))
    assert (found.allowed, found.policies) == (True, ("root",))
    assert not explain(CALLER, RequestedCapability(needs=MANAGEMENT, namespace="default")).allowed


@pytest.mark.parametrize(
    ("method", "target"),
    [("GET", "/v1/nothing"), ("PATCH", "/v1/jobs"), ("PATCH", "/v1/sys/auth/x")],
)
def test_missing_route_is_reported(method: str, target: str) -> None:
    with pytest.raises(NotFound, match="there is no route"):
        right(method, target)
