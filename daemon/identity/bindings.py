"""Bindings of a role: rules for the claims of a token and for the requested resource.

Each rule yields a verdict that names the checked value, so that a rejected user gets the reason.
Only the claims prove an identity; the request must agree with them.
"""

from collections.abc import Iterator, Sequence

import msgspec

from daemon.identity.jwt_verification import Claims, format_timestamp
from daemon.identity.login_request import LoginRequest
from daemon.identity.resource_id import (
    SCALE_SET,
    SCALE_SET_INSTANCE,
    VIRTUAL_MACHINE,
    ResourceID,
    contains,
    parse,
    same,
)
from daemon.text.go_format import format_list
from storage.records.base import SECOND
from storage.records.identity import LoginRole

ANYONE = ["*"]


class BindingCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one rule: `looked_at` names the checked claim or fact, `seen` is its value.

    `refusal` is the error for the caller if the rule is broken, else empty.
    """

    rule: str
    looked_at: str
    seen: str
    refusal: str = ""


# ---- claims -------------------------------------------------------------------------------------


def check_claims(role: LoginRole, claims: Claims, now: int, leeway: int) -> Iterator[BindingCheck]:
    """Yield the verdicts of the rules that depend only on the token's claims."""
    begins = claims.nbf
    early = begins is not None and (int(begins) - leeway) * SECOND > now
    yield BindingCheck(
        rule="the token is already valid",
        looked_at="nbf",
        seen=format_timestamp(begins),
        refusal=f"token is not yet valid (Token Not Before: {format_timestamp(begins)})"
        if early
        else "",
    )
    principals, groups = role.bound_service_principal_ids, role.bound_group_ids
    means_all = not (principals or groups) or principals == groups == ANYONE
    yield BindingCheck(
        rule="the role lists principals or groups",
        looked_at="bound_service_principal_ids, bound_group_ids",
        seen=f"{format_list(principals or [])} {format_list(groups or [])}",
        refusal="expected specific bound_group_ids or bound_service_principal_ids; both cannot be "
        "empty or '*'"
        if means_all
        else "",
    )
    oid = claims.oid or ""
    if principals:
        fits = principals == ANYONE or contains(principals, oid)
        yield BindingCheck(
            rule="bound_service_principal_ids",
            looked_at="oid",
            seen=oid,
            refusal="" if fits else f"service principal not authorized: {oid}",
        )
    if groups:
        yield _of_groups(groups, claims)


def _of_groups(bound: Sequence[str], claims: Claims) -> BindingCheck:
    groups = [group or "" for group in claims.groups or ()]
    fits = bound == ANYONE or any(contains(bound, group) for group in groups)
    elsewhere = " (too many for the token, which has a link to them)"
    return BindingCheck(
        rule="bound_group_ids",
        looked_at="groups",
        seen=format_list(groups) + (elsewhere if claims.names_groups_elsewhere else ""),
        refusal="" if fits else f"groups not authorized: {format_list(groups)}",
    )


# --- the request against the claims -------------------------------------------------------------


def check_request(role: LoginRole, claims: Claims, request: LoginRequest) -> Iterator[BindingCheck]:
    """Yield the verdicts on the login request that need no lookup in the cloud."""
    named = request.subscription_id and request.resource_group_name
    yield BindingCheck(
        rule="subscription and group are given",
        looked_at="subscription_id, resource_group_name",
        seen=f"{request.subscription_id} {request.resource_group_name}",
        refusal="" if named else "subscription_id and resource_group_name are required",
    )
    if not _names_machines(request):
        # These checks reject an identifier that only looks like the request's group.
        yield from _of_place(role, request)
    yield from _check_resource(role, claims, request)


def _names_machines(request: LoginRequest) -> bool:
    return bool(request.vmss_name or request.vm_name)


def _of_place(role: LoginRole, request: LoginRequest) -> Iterator[BindingCheck]:
    if role.bound_subscription_ids:
        fits = contains(role.bound_subscription_ids, request.subscription_id)
        yield BindingCheck(
            rule="bound_subscription_ids",
            looked_at="subscription_id",
            seen=request.subscription_id,
            refusal="" if fits else "subscription not authorized",
        )
    if role.bound_resource_groups:
        fits = contains(role.bound_resource_groups, request.resource_group_name)
        yield BindingCheck(
            rule="bound_resource_groups",
            looked_at="resource_group_name",
            seen=request.resource_group_name,
            refusal="" if fits else "resource group not authorized",
        )


def _check_resource(
    role: LoginRole, claims: Claims, request: LoginRequest
) -> Iterator[BindingCheck]:
    """Yield the verdicts on the requested resource: a scale set, a machine, or any other type."""
    seen = f"xms_az_rid {claims.xms_az_rid or '-'}, xms_mirid {claims.xms_mirid or '-'}"
    agreement = "the token was issued for the requested resource"
    if request.vmss_name:
        yield BindingCheck(
            rule=agreement,
            looked_at="xms_az_rid, xms_mirid",
            seen=seen,
            refusal=_scale_set_refusal(claims, request),
        )
        yield from _of_scale_set(role, request.vmss_name)
    elif request.vm_name:
        yield BindingCheck(
            rule=agreement,
            looked_at="xms_az_rid, xms_mirid",
            seen=seen,
            refusal=_machine_refusal(claims, request),
        )
        yield _without_sets(
            role, "vm_name", "bound scale set defined but this vm isn't in a scale set"
        )
    else:
        yield _without_sets(role, "resource_id", "scale set requires the vmss_name field to be set")
        yield BindingCheck(
            rule="the resource is in the requested group",
            looked_at="resource_id",
            seen=request.resource_id,
            refusal=_resource_refusal(claims, request),
        )


def _of_scale_set(role: LoginRole, name: str) -> Iterator[BindingCheck]:
    if role.bound_scale_sets:
        fits = contains(role.bound_scale_sets, name)
        yield BindingCheck(
            rule="bound_scale_sets",
            looked_at="vmss_name",
            seen=name,
            refusal="" if fits else "scale set not authorized",
        )


def _without_sets(role: LoginRole, looked_at: str, refusal: str) -> BindingCheck:
    return BindingCheck(
        rule="bound_scale_sets",
        looked_at=looked_at,
        seen=format_list(role.bound_scale_sets or []),
        refusal=refusal if role.bound_scale_sets else "",
    )


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A resource as the request describes it."""

    field: str
    value: str
    type: str
    subscription: str
    group: str
    is_instance: bool = False  # the claim names an instance of the set: `<set>_<something>`

    def has_name(self, text: str) -> bool:
        """Return whether a claim matches this resource, apart from its group and subscription."""
        parsed = parse(text)
        return parsed is not None and self._names(parsed)

    def mismatch(self, claim: str, text: str) -> str:
        """Return how a claim differs from this resource; empty if the claim matches it."""
        parsed = parse(text)
        if parsed is None or not self._names(parsed):
            return f"{claim} token claim does not match {self.field} {self.value}"
        if not same(parsed.group, self.group):
            return f"{claim} token claim does not match resource_group_name {self.group}"
        if not same(parsed.subscription, self.subscription):
            return f"{claim} token claim does not match subscription_id {self.subscription}"
        return ""

    def _names(self, resource_id: ResourceID) -> bool:
        if same(
            resource_id.type, SCALE_SET_INSTANCE
        ):  # `…/virtualMachineScaleSets/<set>/…/<number>`
            return self.type == SCALE_SET and same(resource_id.names[0], self.value)
        if not same(resource_id.type, self.type):
            return False
        name = resource_id.name
        if self.is_instance:
            name, _, instance = resource_id.name.rpartition("_")
            return bool(instance) and same(name, self.value)
        return same(name, self.value)


def _machine_refusal(claims: Claims, request: LoginRequest) -> str:
    expected = _wanted(request, "vm_name", VIRTUAL_MACHINE)
    return _disagreement(claims, expected)


def _scale_set_refusal(claims: Claims, request: LoginRequest) -> str:
    """Return why the claims do not belong to the requested scale set; empty if they do."""
    uniform = _wanted(request, "vmss_name", SCALE_SET)
    flexible = msgspec.structs.replace(uniform, type=VIRTUAL_MACHINE, is_instance=True)
    refusals = [_disagreement(claims, expected) for expected in (flexible, uniform)]
    if not all(refusals):
        return ""
    for expected, refusal in ((flexible, refusals[0]), (uniform, refusals[1])):
        if any(expected.has_name(text) for text in (claims.xms_az_rid, claims.xms_mirid) if text):
            return refusal  # the set matches, but in another location
    return (
        f"failed to verify flexible vmss claim: {refusals[0]}\n"
        f"failed to verify uniform vmss claim: {refusals[1]}"
    )


def _wanted(request: LoginRequest, field: str, kind: str) -> _Wanted:
    return _Wanted(
        field=field,
        value=getattr(request, field),
        type=kind,
        subscription=request.subscription_id,
        group=request.resource_group_name,
    )


def _disagreement(claims: Claims, expected: _Wanted) -> str:
    """Return how the claims differ from a resource; empty if at least one claim matches it."""
    claims_given = {"xms_az_rid": claims.xms_az_rid, "xms_mirid": claims.xms_mirid}
    present = {claim: text for claim, text in claims_given.items() if text}
    if not present:
        return "xms_az_rid and xms_mirid claims are missing from token"
    mismatches = [expected.mismatch(claim, text) for claim, text in present.items()]
    return "\n".join(mismatches) if all(mismatches) else ""


def _resource_refusal(claims: Claims, request: LoginRequest) -> str:
    if not request.resource_id and not claims.appid:
        return "one of vm_name, vmss_name, resource_id, or an appid JWT claim must be provided"
    parsed = parse(request.resource_id)
    if parsed is None or not same(parsed.group, request.resource_group_name):
        return "provided resource_id does not match resource_group_name"
    if not same(parsed.subscription, request.subscription_id):
        return "provided resource_id does not match subscription_id"
    return ""


# --- the resource in the cloud ---


def names_another_resource(claims: Claims, resource: ResourceID) -> bool:
    """Return whether the token was issued for a resource other than `resource`.

    Only the claim `xms_az_rid` names the token's resource. `xms_mirid` names the identity, which
    many resources can share.
    """
    if not claims.xms_az_rid:
        return False
    claimed = parse(claims.xms_az_rid)
    return claimed is None or not (claimed.is_same(resource) or claimed.is_part_of(resource))


def check_bounds(role: LoginRole, request: LoginRequest, location: str) -> Iterator[BindingCheck]:
    """Yield the verdicts on a resource's location, and on a machine's subscription and group.

    The caller has already checked that the resource matches the request.
    """
    if _names_machines(request):
        yield from _of_place(role, request)
    yield from _of_location(role, location)


def _of_location(role: LoginRole, location: str) -> Iterator[BindingCheck]:
    if not role.bound_locations:
        return
    refusal = "" if contains(role.bound_locations, location) else "location not authorized"
    yield BindingCheck(
        rule="bound_locations",
        looked_at="location of the resource",
        seen=location,
        refusal=refusal if location else "location is empty",
    )
