"""Crash scenes for access control and secrets.

Their operations make the daemon reach its crash points.
"""

from storage.records.base import SECOND
from tests.crash.job_scenes import Scene
from tests.crash.world import CLOUD_NAMES, World
from tests.fakes import fakecloud


async def variables(world: World) -> None:
    """Write, lock, renew, release and remove variables."""
    path = f"/v1/var/app/{world.fresh('v')}"  # a variable can still be locked from before a crash
    await world.change("PUT", path, {"Items": {"k": "1"}}, at=path, shows={"Items": {"k": "1"}})
    await world.change("PUT", path, {"Items": {"k": "2"}}, at=path, shows={"Items": {"k": "2"}})
    lock = {"Items": {"k": "3"}, "Lock": {"TTL": "10s", "LockDelay": "0s"}}
    taken = await world.change(
        "PUT", path, lock, at=path, shows={"Items": {"k": "3"}}, **{"lock-acquire": ""}
    )
    own = {"Lock": {"ID": taken["Lock"]["ID"]}}
    await world.change("PUT", path, own, **{"lock-renew": ""})
    await world.change("PUT", path, own, **{"lock-release": ""})
    await world.change("DELETE", path, at=path, shows=None)


async def access(world: World) -> None:
    """Create and delete policies, tokens and roles of both APIs."""
    policy = {"Name": "p", "Rules": 'namespace "default" { policy = "read" }'}
    await world.change(
        "POST", "/v1/acl/policy/p", policy, at="/v1/acl/policy/p", shows={"Name": "p"}
    )
    role = await world.change(
        "POST", "/v1/acl/role", {"Name": world.fresh("r"), "Policies": [{"Name": "p"}]}
    )
    world.promise(f"/v1/acl/role/{role['ID']}", {"ID": role["ID"]})
    token = await world.change(
        "POST",
        "/v1/acl/token",
        {"Type": "client", "Policies": ["p"], "ExpirationTTL": 24 * 3600 * SECOND},
    )
    world.promise(f"/v1/acl/token/{token['AccessorID']}", {"AccessorID": token["AccessorID"]})
    # An expired token cannot be changed.
    token = await world.change("POST", "/v1/acl/token", {"Type": "client", "Policies": ["p"]})
    at = f"/v1/acl/token/{token['AccessorID']}"
    world.promise(at, {"AccessorID": token["AccessorID"]})
    await world.change("POST", at, {**token, "Name": "n"}, at=at, shows={"Name": "n"})
    once = await world.change("POST", "/v1/acl/token/onetime")
    await world.change(
        "POST",
        "/v1/acl/token/onetime/exchange",
        {"OneTimeSecretID": once["OneTimeToken"]["OneTimeSecretID"]},
    )
    await world.change("DELETE", at, at=at, shows=None)
    role_at = f"/v1/acl/role/{role['ID']}"
    await world.change("DELETE", role_at, at=role_at, shows=None)
    await world.change("DELETE", "/v1/acl/policy/p", at="/v1/acl/policy/p", shows=None)
    await world.change(
        "PUT", "/v1/namespace/ops", {"Name": "ops"}, at="/v1/namespace/ops", shows={"Name": "ops"}
    )
    await world.change("DELETE", "/v1/namespace/ops", at="/v1/namespace/ops", shows=None)
    await world.change("POST", "/v1/operator/keyring/rotate")
    await world.refused("/v1/jobs", token="00000000-0000-4000-8000-00000000000f")
    await world.until_audited(403)


async def secrets_side(world: World) -> None:
    """Exercise the Vault API: policies, token roles, wrapped responses and leases."""
    rules = {"policy": 'path "sys/auth" { capabilities = ["read"] }'}
    at = "/v1/sys/policies/acl/ops"
    await world.change("POST", at, rules, at=at, shows={"data": {"name": "ops"}})
    role = "/v1/auth/token/roles/r"
    await world.change(
        "POST", role, {"allowed_policies": ["ops"]}, at=role, shows={"data": {"name": "r"}}
    )
    made = await world.change(
        "POST", "/v1/auth/token/create", {"policies": ["ops"], "ttl": "1h", "num_uses": 5}
    )
    token = made["auth"]["client_token"]
    await world.change("POST", "/v1/auth/token/renew", {"token": token})
    await world.steward_as(token, "GET", "/v1/auth/token/lookup-self")
    await world.change("POST", "/v1/auth/token/revoke", {"token": token})
    wrapped = await world.change(
        "POST",
        "/v1/auth/token/create",
        {"policies": ["ops"]},
        headers={"X-Service-Wrap-TTL": "60s"},
    )
    await world.change("POST", "/v1/sys/wrapping/unwrap", {"token": wrapped["wrap_info"]["token"]})
    await world.change("DELETE", role, at=role, shows=None)
    await world.change("DELETE", at, at=at, shows=None)
    await world.change("POST", "/v1/identity/oidc/config", {"issuer": "https://steward.example"})


async def logins(world: World) -> None:
    """Enable the login method, configure it, log in, rotate its secret, revoke a lease, and disable it."""
    mount = "/v1/sys/auth/cloudid"
    await world.spoil("", "")
    world.forget("/v1/auth/cloudid")
    world.forget_tokens()  # deleted with the mount
    await world.steward.request("DELETE", mount)
    await world.change("POST", mount, {"type": "cloudid"})
    await world.change("POST", f"{mount}/tune", {"description": "logins"})
    at = "/v1/auth/cloudid/config"
    await world.change(
        "POST", at, CLOUD_NAMES, at=at, shows={"data": {"tenant_id": fakecloud.TENANT}}
    )
    role = "/v1/auth/cloudid/role/vm"
    bound = {
        "bound_service_principal_ids": ["0b000000-0000-4000-8000-000000000001"],
        "bound_subscription_ids": [fakecloud.SUB_A],
    }
    await world.change(
        "POST", role, bound, at=role, shows={"data": {"bound_subscription_ids": [fakecloud.SUB_A]}}
    )
    body = {
        "role": "vm",
        "jwt": await world.mint(),
        "subscription_id": fakecloud.SUB_A,
        "resource_group_name": "rg-one",
        "vm_name": "vm-sys",
    }
    done = await world.change("POST", "/v1/auth/cloudid/login", body)
    world.promise_token(done["auth"]["client_token"])
    entity = f"/v1/identity/entity/id/{done['auth']['entity_id']}"
    await world.change("POST", entity, {"name": world.fresh("e"), "metadata": {"a": "b"}})
    world.forget_tokens()  # deleted with the entity
    await world.change("DELETE", entity)
    await world.change("POST", "/v1/auth/cloudid/rotate-root", {})
    await world.spoil("graph", "addPassword")
    failed = await world.steward.request("POST", "/v1/auth/cloudid/rotate-root", {})
    assert failed.status_code == 500, failed.text
    await world.spoil("", "")
    done = await world.change("POST", "/v1/auth/cloudid/login", body)
    world.promise_token(done["auth"]["client_token"])
    again = await world.change("POST", "/v1/auth/cloudid/login", body)
    lease = f"auth/cloudid/login/{again['auth']['accessor']}"
    await world.change("POST", "/v1/sys/leases/revoke", {"lease_id": lease})
    await world.change("DELETE", role, at=role, shows=None)
    world.forget("/v1/auth/cloudid")
    await world.change("DELETE", at)
    world.forget_tokens()
    await world.change("DELETE", mount)


async def groups(world: World) -> None:
    """Create and delete groups, their aliases and those of entities; move a mount."""
    for mount in ("moved", "aside"):
        await world.steward.request("DELETE", f"/v1/sys/auth/{mount}")
    await world.change("POST", "/v1/sys/auth/aside", {"type": "cloudid"})
    await world.change("POST", "/v1/sys/remount", {"from": "auth/aside", "to": "auth/moved"})
    accessor = (await world.steward.get("/v1/sys/auth/moved"))["data"]["accessor"]
    one = await _put(world, "group", name=world.fresh("g"), type="external", policies=["ops"])
    alias = await _put(
        world, "group-alias", name=world.fresh("a"), mount_accessor=accessor, canonical_id=one
    )
    await _remove(world, f"group-alias/id/{alias}")
    await _remove(world, f"group/id/{one}")
    name = world.fresh("g")
    await _put(world, "group", name=name)
    await _remove(world, f"group/name/{name}")
    name = world.fresh("e")
    entity = await _put(world, "entity", name=name)
    alias = await _put(
        world, "entity-alias", name=world.fresh("a"), mount_accessor=accessor, canonical_id=entity
    )
    await _remove(world, f"entity-alias/id/{alias}")
    await _remove(world, f"entity/name/{name}")
    await world.change("DELETE", "/v1/sys/auth/moved")


async def _put(world: World, kind: str, **fields: object) -> str:
    """Create an entity, a group or an alias; record it as a promise, and return its ID."""
    made = await world.change("POST", f"/v1/identity/{kind}", fields)
    found: str = made["data"]["id"]
    world.promise(f"/v1/identity/{kind}/id/{found}", {"data": {"id": found}})
    return found


async def _remove(world: World, path: str) -> None:
    """Delete an entity, a group or an alias; it must stay deleted."""
    kind = path.split("/")[0]
    world.forget(f"/v1/identity/{kind}/")
    await world.change("DELETE", f"/v1/identity/{path}", at=f"/v1/identity/{path}", shows=None)


async def methods(world: World) -> None:
    """Create and delete an auth method with a binding rule, and fetch its keys."""
    at = "/v1/acl/auth-method/ci"
    config = {"JWKSURL": f"{world.cloud_url}/{fakecloud.TENANT}/discovery/v2.0/keys"}
    method = {"Name": "ci", "Type": "JWT", "TokenLocality": "local", "MaxTokenTTL": "1h"}
    await world.change(
        *("POST", "/v1/acl/auth-method", {**method, "Config": config}),
        at=at,
        shows={"Name": "ci"},
    )
    rule = {"AuthMethod": "ci", "BindType": "management"}
    made = await world.change("POST", "/v1/acl/binding-rule", rule)
    rule_at = f"/v1/acl/binding-rule/{made['ID']}"
    world.promise(rule_at, {"ID": made["ID"]})
    login = {"AuthMethodName": "ci", "LoginToken": await world.mint()}
    await world.steward.request("POST", "/v1/acl/login", login)
    await world.change("DELETE", rule_at, at=rule_at, shows=None)
    world.forget("/v1/acl/binding-rule/")  # deleting the method also deletes rules of killed rounds
    await world.change("DELETE", at, at=at, shows=None)


async def expiry(world: World) -> None:
    """Let a lock expire."""
    path = "/v1/var/app/brief"
    lock = {"Items": {"k": "1"}, "Lock": {"TTL": "10s", "LockDelay": "0s"}}
    answer = await world.steward.request("PUT", path, lock, **{"lock-acquire": ""})
    assert answer.status_code in (200, 409), answer.text  # 409: created before a crash
    await world.steward.until(path, lambda shown: "Lock" not in shown)


SCENES: tuple[Scene, ...] = (variables, access, secrets_side, logins, groups, methods, expiry)
