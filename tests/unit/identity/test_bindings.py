"""Requirements of a role for claims and requests."""

import pytest

from daemon.identity.bindings import (
    check_bounds,
    check_claims,
    check_request,
    names_another_resource,
)
from daemon.identity.jwt_verification import Claims
from daemon.identity.login_request import LoginRequest
from daemon.identity.resource_id import parse
from storage.records.base import SECOND
from storage.records.identity import LoginRole

NOW = 1_000_000 * SECOND
BASE = "/subscriptions/sub/resourcegroups/rg-one/providers/Microsoft.Compute"
MACHINE = f"{BASE}/virtualMachines/vm-sys"
INSTANCE = f"{BASE}/virtualMachines/ss-flex_1a2b3c4d"
SET = f"{BASE}/virtualMachineScaleSets/ss-uni"
SITE = "/subscriptions/sub/resourceGroups/rg-one/providers/Microsoft.Web/sites/app-one"
IDENTITY = (
    "/subscriptions/sub/resourcegroups/rg-one/providers/Microsoft.ManagedIdentity/"
    "userAssignedIdentities/id-one"
)


def refusal(role: LoginRole, claims: Claims, leeway: int = 0) -> str:
    return next(
        (claim.refusal for claim in check_claims(role, claims, NOW, leeway) if claim.refusal), ""
    )


def bound(**bounds: list[str]) -> LoginRole:
    return LoginRole(**bounds)


@pytest.mark.parametrize(
    ("role", "claims"),
    [
        (bound(bound_service_principal_ids=["A"]), Claims(oid="a")),
        (bound(bound_service_principal_ids=["*"], bound_group_ids=["g"]), Claims(groups=["G"])),
        (bound(bound_group_ids=["*"], bound_service_principal_ids=["a"]), Claims(oid="a")),
        (bound(bound_service_principal_ids=["*"]), Claims(oid="anyone")),
        (bound(bound_group_ids=["x", "g"]), Claims(groups=["y", "g", ""])),
        (bound(bound_service_principal_ids=["a"]), Claims(oid="a", nbf=1_000_000)),
    ],
)
def test_matching_claims_are_accepted(role: LoginRole, claims: Claims) -> None:
    assert refusal(role, claims) == ""


@pytest.mark.parametrize(
    ("role", "claims", "text"),
    [
        (
            bound(bound_service_principal_ids=["a"]),
            Claims(oid="b"),
            "service principal not authorized: b",
        ),
        (bound(bound_service_principal_ids=["a"]), Claims(), "service principal not authorized: "),
        (bound(bound_group_ids=["g"]), Claims(), "groups not authorized: []"),
        (
            bound(bound_group_ids=["*", "x"]),
            Claims(groups=["a", "b", ""]),
            "groups not authorized: [a b ]",
        ),
        (
            bound(bound_subscription_ids=["s"]),
            Claims(oid="a"),
            "expected specific bound_group_ids or bound_service_principal_ids; both cannot be "
            "empty or '*'",
        ),
        (
            bound(bound_group_ids=["*"], bound_service_principal_ids=["*"]),
            Claims(oid="a"),
            "expected specific bound_group_ids or bound_service_principal_ids; both cannot be "
            "empty or '*'",
        ),
        (
            bound(bound_service_principal_ids=["a"]),
            Claims(oid="a", nbf=1_000_001),
            "token is not yet valid (Token Not Before: 1970-01-12 13:46:41 +0000 UTC)",
        ),
    ],
)
def test_mismatched_claims_are_refused(role: LoginRole, claims: Claims, text: str) -> None:
    assert refusal(role, claims) == text


def test_leeway_tolerates_a_slow_clock() -> None:
    role = bound(bound_service_principal_ids=["a"])
    assert refusal(role, Claims(oid="a", nbf=1_000_030), leeway=30) == ""


def test_each_rule_shows_the_checked_value() -> None:
    role = bound(bound_service_principal_ids=["a"], bound_group_ids=["g"])
    claims = Claims(oid="a", groups=["x"], hasgroups=True)
    looked = [
        (claim.rule, claim.looked_at, claim.seen) for claim in check_claims(role, claims, NOW, 0)
    ]
    assert looked[2:] == [
        ("bound_service_principal_ids", "oid", "a"),
        ("bound_group_ids", "groups", "[x] (too many for the token, which has a link to them)"),
    ]


# ---- the request ---------------------------------------------------------------------------------


def asked(**fields: str) -> LoginRequest:
    return LoginRequest(
        **{"subscription_id": "sub", "resource_group_name": "rg-one", **fields},
    )


def disagreement(request: LoginRequest, claims: Claims, role: LoginRole | None = None) -> str:
    """Return the first refusal of a request whose resource is in westeurope."""
    role = role or LoginRole()
    verdicts = [*check_request(role, claims, request), *check_bounds(role, request, "westeurope")]
    return next((verdict.refusal for verdict in verdicts if verdict.refusal), "")


@pytest.mark.parametrize(
    ("request_", "claims"),
    [
        (asked(vm_name="VM-sys"), Claims(xms_mirid=MACHINE)),
        (asked(vm_name="vm-sys", resource_group_name="RG-ONE"), Claims(xms_mirid=MACHINE)),
        (asked(vm_name="vm-sys"), Claims(xms_mirid=IDENTITY, xms_az_rid=MACHINE)),
        (asked(vmss_name="ss-uni"), Claims(xms_mirid=SET)),
        (asked(vmss_name="ss-flex"), Claims(xms_mirid=IDENTITY, xms_az_rid=INSTANCE)),
        (asked(vmss_name="ss-uni", vm_name="ignored"), Claims(xms_mirid=SET)),
        (asked(resource_id=SITE), Claims()),
        (asked(resource_id=SITE.lower()), Claims()),
    ],
)
def test_request_that_matches_the_claims_is_accepted(
    request_: LoginRequest, claims: Claims
) -> None:
    assert disagreement(request_, claims) == ""


@pytest.mark.parametrize(
    ("request_", "claims", "text"),
    [
        (
            asked(subscription_id=""),
            Claims(),
            "subscription_id and resource_group_name are required",
        ),
        (
            asked(vm_name="vm"),
            Claims(xms_mirid=MACHINE),
            "xms_mirid token claim does not match vm_name vm",
        ),
        (
            asked(vm_name="vm-sys", resource_group_name="rg-two"),
            Claims(xms_mirid=MACHINE),
            "xms_mirid token claim does not match resource_group_name rg-two",
        ),
        (
            asked(vm_name="vm-sys", subscription_id="other"),
            Claims(xms_mirid=MACHINE),
            "xms_mirid token claim does not match subscription_id other",
        ),
        (
            asked(vm_name="vm-sys"),
            Claims(),
            "xms_az_rid and xms_mirid claims are missing from token",
        ),
        (
            asked(vm_name="id-one"),
            Claims(xms_mirid=IDENTITY),
            "xms_mirid token claim does not match vm_name id-one",
        ),
        (
            asked(vmss_name="vm-sys"),
            Claims(xms_mirid=MACHINE),
            "failed to verify flexible vmss claim: xms_mirid token claim does not match vmss_name "
            "vm-sys\nfailed to verify uniform vmss claim: xms_mirid token claim does not match "
            "vmss_name vm-sys",
        ),
        (
            asked(vmss_name="ss"),
            Claims(xms_az_rid=f"{BASE}/virtualMachines/ss_a_1a2b"),
            "failed to verify flexible vmss claim: xms_az_rid token claim does not match vmss_name "
            "ss\nfailed to verify uniform vmss claim: xms_az_rid token claim does not match "
            "vmss_name ss",
        ),
        (asked(), Claims(appid="x"), "provided resource_id does not match resource_group_name"),
        (
            asked(),
            Claims(),
            "one of vm_name, vmss_name, resource_id, or an appid JWT claim must be provided",
        ),
        (
            asked(resource_id=f"{SITE}?x=1"),
            Claims(appid="x"),
            "provided resource_id does not match resource_group_name",
        ),
        (
            asked(resource_id=SITE, resource_group_name="rg-o"),
            Claims(),
            "provided resource_id does not match resource_group_name",
        ),
        (
            asked(resource_id=SITE, subscription_id="su"),
            Claims(),
            "provided resource_id does not match subscription_id",
        ),
    ],
)
def test_request_that_contradicts_the_claims_is_refused(
    request_: LoginRequest, claims: Claims, text: str
) -> None:
    assert disagreement(request_, claims) == text


@pytest.mark.parametrize(
    ("role", "request_", "claims", "text"),
    [
        (
            bound(bound_subscription_ids=["other"]),
            asked(vm_name="vm-sys"),
            Claims(xms_mirid=MACHINE),
            "subscription not authorized",
        ),
        (  # the fields of the request are compared with the claims first
            bound(bound_subscription_ids=["sub"], bound_resource_groups=["rg-one"]),
            asked(vm_name="vm-two", resource_group_name="rg-two"),
            Claims(xms_mirid=MACHINE),
            "xms_mirid token claim does not match vm_name vm-two",
        ),
        (
            bound(bound_resource_groups=["rg"]),
            asked(vm_name="vm-sys"),
            Claims(xms_mirid=MACHINE),
            "resource group not authorized",
        ),
        (
            bound(bound_scale_sets=["other"]),
            asked(vmss_name="ss-uni"),
            Claims(xms_mirid=SET),
            "scale set not authorized",
        ),
        (
            bound(bound_scale_sets=["ss-uni"]),
            asked(vm_name="vm-sys"),
            Claims(xms_mirid=MACHINE),
            "bound scale set defined but this vm isn't in a scale set",
        ),
        (
            bound(bound_scale_sets=["ss-uni"]),
            asked(resource_id=SITE),
            Claims(),
            "scale set requires the vmss_name field to be set",
        ),
    ],
)
def test_request_outside_the_bindings_of_the_role_is_refused(
    role: LoginRole, request_: LoginRequest, claims: Claims, text: str
) -> None:
    assert disagreement(request_, claims, role) == text


@pytest.mark.parametrize(
    ("location", "text"),
    [("WestEurope", ""), ("eastus", "location not authorized"), ("", "location is empty")],
)
def test_location_is_compared_case_insensitively(location: str, text: str) -> None:
    role = bound(bound_locations=["westeurope"])
    found = list(check_bounds(role, asked(), location))
    assert [binding_check.refusal for binding_check in found] == [text]


@pytest.mark.parametrize(
    ("claims", "another"),
    [
        (Claims(), False),
        (Claims(xms_mirid=IDENTITY), False),
        (Claims(xms_mirid=IDENTITY, xms_az_rid=SITE.upper()), False),
        (Claims(xms_az_rid=f"{SITE}/slots/blue"), False),
        (Claims(xms_az_rid=f"{SITE}-two"), True),
        (Claims(xms_az_rid=MACHINE), True),
        (Claims(xms_az_rid="nonsense"), True),
    ],
)
def test_only_xms_az_rid_names_another_resource(claims: Claims, another: bool) -> None:
    site = parse(SITE)
    assert site is not None
    assert names_another_resource(claims, site) is another
