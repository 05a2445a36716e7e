"""The resource check of a login: the request against the token's claims, then against the cloud.

The name of a resource proves nothing. The token must have been issued for the resource, and the
cloud must confirm that the resource has the token's identity. An identity that the resource does
not have is accepted if it is in the requested resource group, or in a resource group that the role
binds.
"""

import logging

from daemon.identity.bindings import check_bounds, check_request, names_another_resource
from daemon.identity.credentials import CloudClient
from daemon.identity.jwt_verification import Claims
from daemon.identity.login_request import LoginRequest
from daemon.identity.login_trace import LoginTrace
from daemon.identity.resource_id import contains, parse
from daemon.identity.resource_manager import CloudResource, ResourceManager
from storage.errors import Refused
from storage.records.identity import LoginRole

log = logging.getLogger("steward.identity")

_NO_MATCH = "neither token object id nor token app id match expected identities"
_NO_MATCH_NO_APP = "token object id does not match expected identities, and no app id was found"


async def inspect(
    cloud: ResourceManager,
    client: CloudClient,
    role: LoginRole,
    claims: Claims,
    request: LoginRequest,
    examination: LoginTrace,
) -> None:
    """Check the resource of a login against its role. Raises `Refused`."""
    examination.require(check_request(role, claims, request))
    with examination.rule("the resource can be looked up", "the cloud", _named(request)):
        resource = await _look_up(cloud, client, request)
    with examination.rule("the resource has an identity", "identity", _named(request)):
        principals = await _principals(cloud, client, resource, request)
    oid, appid = claims.oid or "", claims.appid or ""
    with examination.rule("the identity belongs to the resource", "oid, appid", f"{oid} {appid}"):
        if not (oid and oid in principals) or _is_of_another(claims, request):
            await _check_by_client(cloud, client, role, appid, request)
    # A resource of any type has no reliable location, so a role with bound locations rejects it.
    location = resource.location if request.vm_name or request.vmss_name else ""
    examination.require(check_bounds(role, request, location))


def _named(request: LoginRequest) -> str:
    return request.vmss_name or request.vm_name or request.resource_id


def _is_of_another(claims: Claims, request: LoginRequest) -> bool:
    if request.vm_name or request.vmss_name:  # these were already compared with the claims
        return False
    parsed = parse(request.resource_id)
    return parsed is None or names_another_resource(claims, parsed)


async def _look_up(
    cloud: ResourceManager, client: CloudClient, request: LoginRequest
) -> CloudResource:
    where = (request.subscription_id, request.resource_group_name)
    if request.vmss_name:
        return await cloud.scale_set(client, *where, request.vmss_name)
    if request.vm_name:
        return await cloud.virtual_machine(client, *where, request.vm_name)
    parsed = parse(request.resource_id)
    if parsed is None:
        raise Refused("provided resource_id does not match resource_group_name")
    return await cloud.resource(client, parsed)


async def _principals(
    cloud: ResourceManager, client: CloudClient, resource: CloudResource, request: LoginRequest
) -> list[str]:
    """Return the object IDs of all identities that a resource has. Raises `Refused`."""
    identity = resource.identity
    if identity is None:
        kind = "vmss" if request.vmss_name else "vm" if request.vm_name else ""
        raise Refused(f"{kind} client did not return identity information".lstrip())
    principals = [identity.principal_id]
    for name, assigned in (identity.user_assigned_identities or {}).items():
        principals.append(assigned.principal_id)
        if request.vmss_name and not assigned.principal_id:
            # A flexible set lists only the names of its identities, so look up each principal.
            principals.append(await cloud.principal(client, name))
    return [principal for principal in principals if principal]


async def _check_by_client(
    cloud: ResourceManager,
    client: CloudClient,
    role: LoginRole,
    appid: str,
    request: LoginRequest,
) -> None:
    """Check that the token's client is an identity in a permitted resource group.

    The permitted groups are the group of the request and the groups that the role binds. Raises
    `Refused`.
    """
    if not appid:
        raise Refused(_NO_MATCH_NO_APP)
    groups = [request.resource_group_name, *(role.bound_resource_groups or ())]
    for group in {group.lower(): group for group in groups}.values():
        try:
            clients = await cloud.client_ids(client, request.subscription_id, group)
        except Refused as error:
            log.warning("cannot list the identities in resource group %s: %s", group, error)
            continue
        if contains(clients, appid):
            return
    raise Refused(_NO_MATCH)
