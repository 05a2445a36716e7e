"""Complete logins: authorization, the issued token and the stored state."""

import time
from functools import partial

import msgspec
import pytest
import trio
import trio.testing

from daemon.acl.lockout import LockoutPolicy
from daemon.identity import mounts, roles
from daemon.identity.login_request import LoginRequest
from daemon.text.request_fields import RequestFields
from storage.errors import (
    Denied,
    Invalid,
    LoginRefused,
    Refused,
    StorageFull,
    TooOften,
    UnknownToken,
)
from storage.queries import entities, identity, secrets, tokens
from storage.queries import mounts as stored_mounts
from storage.records.acl import TokenKind
from storage.records.base import SECOND
from tests.fakes.fakecloud import SUB_A, SUB_B
from tests.parts.identity.conftest import PRINCIPAL, RESOURCE, Cloud, Login


async def test_login_issues_a_token_that_is_found_by_its_secret(login: Login, cloud: Cloud) -> None:
    await login.role("dev", token_policies="Reader,writer", token_ttl="10m")
    done = await login.log_in(cloud.mint())
    caller = login.tokens.resolve(done.secret)
    assert caller.token.policies == ("default", "reader", "writer")
    assert caller.token.name == f"cloudid-{PRINCIPAL}"
    assert caller.token.path == "auth/cloudid/login"
    assert caller.token.meta is not None
    assert caller.token.meta["role"] == "dev"
    assert caller.token.ttl == 600 * SECOND


async def test_same_principal_has_the_same_entity(login: Login, cloud: Cloud) -> None:
    await login.role("other", bound_service_principal_ids=PRINCIPAL)
    one = await login.log_in(cloud.mint())
    other = await login.log_in(cloud.mint(claims={"groups": ["g"]}), "other", vm_name="a")
    assert one.entity.id == other.entity.id
    (alias,) = login.store.read(lambda db: entities.aliases(db, one.entity.id))
    assert alias.metadata["vm_name"] == "a"


async def test_disabled_entity_cannot_log_in_and_its_tokens_are_revoked(
    login: Login, cloud: Cloud
) -> None:

    done = await login.log_in(cloud.mint())
    disabled = msgspec.structs.replace(done.entity, is_disabled=True)
    await login.store.write(lambda tx: entities.put(tx, disabled))
    with pytest.raises(Denied):
        await login.log_in(cloud.mint())
    with pytest.raises(UnknownToken):
        login.tokens.resolve(done.secret)


async def test_a_batch_token_is_not_stored(login: Login, cloud: Cloud) -> None:
    await login.role("dev", token_type="batch")
    done = await login.log_in(cloud.mint())
    assert done.secret.startswith("b.")
    assert login.tokens.resolve(done.secret).token.kind is TokenKind.BATCH
    assert login.store.read(tokens.list_all) == []


@pytest.mark.parametrize(
    ("mount_type", "role_type"), [("default-batch", "default"), ("batch", "service")]
)
async def test_a_batch_token_with_a_number_of_uses_is_not_issued(
    login: Login, cloud: Cloud, mount_type: str, role_type: str
) -> None:
    await mounts.tune(login.store, "cloudid/", RequestFields({"token_type": mount_type}))
    login.mount = login.store.read(partial(stored_mounts.find, path="cloudid/"))
    await login.role("dev", token_num_uses=3, token_type=role_type)
    with pytest.raises(Invalid, match='batch tokens cannot have "num_uses" set'):
        await login.log_in(cloud.mint())
    request = LoginRequest(role="dev", jwt=cloud.mint())
    examination = await login.methods.explain(login.mount, request, "127.0.0.1")
    assert "num_uses" in examination.broken()


@pytest.mark.parametrize("older", [{"num_uses": 3}, {"period": "5m"}])
async def test_older_names_give_a_batch_token_no_limit_without_effect(
    login: Login, older: dict[str, object]
) -> None:
    with pytest.raises(Invalid, match="'token_type' cannot be 'batch'"):
        await login.role("dev", token_type="batch", **older)
    await login.role("dev", **older)
    with pytest.raises(Invalid, match="'token_type' cannot be 'batch'"):
        await login.role("dev", token_type="batch")


async def test_role_that_no_login_can_name_is_refused(login: Login) -> None:
    with pytest.raises(Invalid, match="relative paths not supported"):
        await login.role("a..b", bound_service_principal_ids=PRINCIPAL)


async def test_full_disk_issues_no_token_without_its_row(login: Login, cloud: Cloud) -> None:
    connection = login.store._writer._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    given = []

    async def let_in(number: int) -> None:
        while len(given) < number:
            given.append(await login.log_in(cloud.mint()))

    with pytest.raises(StorageFull):
        await let_in(500)
    assert len(login.store.read(tokens.list_all)) == len(given)
    connection.execute("PRAGMA max_page_count = 1000000")
    again = await login.log_in(cloud.mint())
    assert login.tokens.resolve(again.secret).token.path == "auth/cloudid/login"


async def test_role_of_another_mount_is_refused_before_any_cloud_request(
    login: Login, cloud: Cloud
) -> None:
    await login.role("dev", token_bound_cidrs="10.0.0.0/8")
    with pytest.raises(UnknownToken):
        await login.log_in(cloud.mint())
    assert cloud.asked() == []


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (LoginRequest(), "jwt is required"),
        (LoginRequest(role="dev"), "jwt is required"),
        (LoginRequest(jwt="x"), "role is required"),
        (LoginRequest(jwt="x", role='no"pe'), 'invalid role name "no\\"pe"'),
        (LoginRequest(jwt="x", role="dev", subscription_id="a"), 'invalid subscription id "a"'),
        (
            LoginRequest(jwt="x", role="dev", subscription_id=f"{SUB_A}\n"),
            f'invalid subscription id "{SUB_A}\\n"',
        ),
        (
            LoginRequest(jwt="x", role="dev", resource_group_name="a/b"),
            'invalid resource group name "a/b"',
        ),
        (LoginRequest(jwt="x", role="dev", vm_name="a\n"), 'invalid vm name "a\\n"'),
        (LoginRequest(jwt="x", role="dev", vm_name="vm-"), 'invalid vm name "vm-"'),
        (LoginRequest(jwt="x", role="dev", vmss_name="ss%2f"), 'invalid vmss_name "ss%2f"'),
    ],
)
async def test_incomplete_or_invalid_request_is_reported(
    login: Login, request_: LoginRequest, text: str
) -> None:
    with pytest.raises(Invalid) as raised:
        await login.methods.login(login.mount, request_, "127.0.0.1")
    assert str(raised.value) == text


async def test_a_machine_of_another_subscription_is_refused(login: Login, cloud: Cloud) -> None:
    jwt = cloud.mint_machine()
    with pytest.raises(Refused, match="does not match subscription_id"):
        await login.log_in(
            jwt, "vm", subscription_id=SUB_B, resource_group_name="rg-one", vm_name="vm-sys"
        )
    assert cloud.asked("resource_manager") == []


async def test_cloud_requests_have_a_timeout(
    login: Login, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:

    config, environment = login.methods._surroundings
    short = msgspec.structs.replace(config, cloud_login_seconds=1)
    monkeypatch.setattr(login.methods, "_surroundings", (short, environment))
    cloud.fail(service="resource_manager", delay_s=60)
    jwt, began = cloud.mint_machine(), time.monotonic()
    with pytest.raises(Refused, match="the cloud did not answer in time"):
        await login.log_in_machine(jwt)
    assert time.monotonic() - began < 10
    await login.log_in(cloud.mint())


async def test_slow_cloud_request_does_not_block_other_logins(login: Login, cloud: Cloud) -> None:
    cloud.fail(service="resource_manager", delay_s=60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(login.log_in_machine, cloud.mint_machine())
        await trio.testing.wait_all_tasks_blocked(0.1)
        with trio.fail_after(5):
            await login.log_in(cloud.mint())
        nursery.cancel_scope.cancel()


# ---- deletion of a mount ---------------------------------------------------------------------------


async def test_disabled_mount_revokes_its_tokens_and_deletes_its_secret(
    login: Login, cloud: Cloud
) -> None:
    done = await login.log_in(cloud.mint())
    await mounts.disable(login.store, login.tokens, "cloudid/")
    with pytest.raises(UnknownToken):
        login.tokens.resolve(done.secret)
    assert login.store.read(lambda db: secrets.below(db, "identity/")) == []
    assert login.store.read(lambda db: identity.role_names(db, login.mount.accessor)) == []


async def test_login_during_the_deletion_of_its_mount_gets_no_token(
    login: Login, cloud: Cloud
) -> None:
    cloud.fail(service="resource_manager", delay_s=0.3)
    async with trio.open_nursery() as nursery:

        async def attempt() -> None:
            with pytest.raises(UnknownToken):
                await login.log_in_machine(cloud.mint_machine())

        nursery.start_soon(attempt)
        while not cloud.asked("resource_manager"):
            await trio.testing.wait_all_tasks_blocked(0.01)
        await mounts.disable(login.store, login.tokens, "cloudid/")
    assert login.store.read(tokens.list_all) == []


async def test_tokens_of_a_deleted_mount_are_revoked_at_the_next_start(
    login: Login, cloud: Cloud
) -> None:
    from storage.queries import mounts as stored

    done = await login.log_in(cloud.mint())
    await login.store.write(lambda tx: stored.remove(tx, "cloudid/"))
    await mounts.finish_disabling(login.store, login.tokens)
    with pytest.raises(UnknownToken):
        login.tokens.resolve(done.secret)


async def test_methods_at_two_paths_are_independent(login: Login, cloud: Cloud) -> None:
    uuid = "11111111-1111-4111-8111-111111111111"
    second = mounts.new_mount("team/dir/", RequestFields({"type": "azure"}), uuid)
    await mounts.enable(login.store, second)
    with pytest.raises(Invalid, match="invalid role name"):
        await login.methods.login(second, LoginRequest(role="dev", jwt=cloud.mint()), "")
    await roles.write(
        login.store, second, "dev", RequestFields({"bound_service_principal_ids": PRINCIPAL})
    )
    with pytest.raises(Refused, match="tenant_id is required"):
        await login.methods.login(second, LoginRequest(role="dev", jwt=cloud.mint()), "")


# ---- explain -------------------------------------------------------------------------------------


async def test_explain_shows_each_rule_and_issues_no_token(login: Login, cloud: Cloud) -> None:
    request = LoginRequest(
        role="vm",
        jwt=cloud.mint_machine(),
        subscription_id=SUB_A,
        resource_group_name="rg-one",
        vm_name="vm-sys",
    )
    examination = await login.methods.explain(login.mount, request, "127.0.0.1")
    assert not examination.broken()
    assert {"bound_service_principal_ids", "bound_subscription_ids"} <= {
        verdict.rule for verdict in examination.verdicts
    }
    assert login.store.read(tokens.list_all) == []
    assert login.store.read(entities.list_all) == []


async def test_explain_names_the_violated_rule(login: Login, cloud: Cloud) -> None:
    await login.role("dev", bound_service_principal_ids="another")
    request = LoginRequest(role="dev", jwt=cloud.mint())
    examination = await login.methods.explain(login.mount, request, "127.0.0.1")
    assert examination.broken() == f"bound_service_principal_ids (oid: {PRINCIPAL})"
    assert examination.verdicts[-1].refusal == f"service principal not authorized: {PRINCIPAL}"


# ---- groups --------------------------------------------------------------------------------------


async def test_entity_has_the_groups_of_the_latest_login(login: Login, cloud: Cloud) -> None:
    groups = [
        (await login.log_in(cloud.mint(claims={"groups": names}))).entity.groups
        for names in (["a"], ["a", "b"], [])
    ]
    assert groups == [["a"], ["a", "b"], []]


async def test_missing_group_claims_are_looked_up_if_configured(login: Login, cloud: Cloud) -> None:
    await login.role("grp", bound_group_ids="grp-1")
    jwt = cloud.mint(claims={"_claim_names": {"groups": "src1"}})
    with pytest.raises(Refused, match=r"groups not authorized: \[\]"):
        await login.log_in(jwt, "grp")
    cloud.fail(service="graph", path="getMemberGroups", status=200, body={"value": ["GRP-1"]})
    await login.configure(look_up_groups=True)
    done = await login.log_in(jwt, "grp")
    assert done.entity.groups == ["GRP-1"]


async def test_failed_group_lookup_is_reported(login: Login, cloud: Cloud) -> None:
    await login.role("grp", bound_group_ids="grp-1")
    await login.configure(look_up_groups=True)
    cloud.fail(
        service="graph", status=403, body={"error": {"code": "No", "message": "not allowed"}}
    )
    with pytest.raises(Refused, match="cannot be looked up: not allowed"):
        await login.log_in(cloud.mint(claims={"hasgroups": True}), "grp")


async def explained(login: Login, jwt: str, role: str = "dev") -> tuple[str, list[str]]:
    """Return the violated rule, and the login's response."""
    request = LoginRequest(role=role, jwt=jwt)
    examination = await login.methods.explain(login.mount, request, "127.0.0.1")
    return examination.broken(), [
        verdict.refusal for verdict in examination.verdicts if verdict.refusal
    ]


async def test_explain_reports_a_missing_configuration(login: Login, cloud: Cloud) -> None:
    jwt = cloud.mint()
    await login.methods.unconfigure(login.mount)
    assert await explained(login, jwt) == (
        "the method is configured (config: )",
        ["tenant_id is required"],
    )


async def test_explain_refuses_a_token_without_a_name(login: Login, cloud: Cloud) -> None:
    await login.role("named", bound_group_ids="g")
    jwt = cloud.mint(claims={"oid": "", "groups": ["g"]})
    assert (await explained(login, jwt, "named"))[1] == ["missing name in alias"]


async def test_explain_shows_the_policies_of_the_token(login: Login, cloud: Cloud) -> None:
    await login.role("root", bound_service_principal_ids=PRINCIPAL, token_policies="root")
    assert (await explained(login, cloud.mint(), "root"))[1] == [
        "auth methods cannot create root tokens"
    ]


async def test_explain_reports_disabled_entities(login: Login, cloud: Cloud) -> None:
    entity = (await login.log_in(cloud.mint())).entity
    disabled = msgspec.structs.replace(entity, is_disabled=True)
    await login.store.write(lambda tx: entities.put(tx, disabled))
    assert (await explained(login, cloud.mint()))[0].startswith("the entity is not disabled")


async def test_failure_of_the_cloud_does_not_count_as_a_failed_login(
    login: Login, cloud: Cloud
) -> None:
    noted: list[tuple[str, str]] = []
    login.tokens.record_failure = lambda *shown: noted.append(shown)
    await login.log_in_machine(cloud.mint_machine())
    cloud.fail(service="resource_manager", status=503)
    with pytest.raises(Refused, match="503"):
        await login.log_in_machine(cloud.mint_machine())
    assert noted == []
    with pytest.raises(Refused, match="signature"):
        await login.log_in(cloud.mint(tamper="signature"))
    assert noted == [("127.0.0.1", f"{login.mount.accessor}/dev")]
    await login.role("dev", bound_service_principal_ids="somebody-else")
    with pytest.raises(Refused, match="service principal not authorized"):
        await login.log_in(cloud.mint())
    assert len(noted) == 1


async def test_signed_logins_outside_a_role_cause_no_lockout(login: Login, cloud: Cloud) -> None:
    login.tokens.failures.lock_out = LockoutPolicy(threshold=3, span=60 * SECOND)
    await login.role("other", bound_service_principal_ids="somebody-else")
    good, forged = cloud.mint(), cloud.mint(tamper="signature")
    nat = "192.0.2.1"

    async def log_in(role: str, jwt: str) -> None:
        await login.methods.login(login.mount, LoginRequest(role=role, jwt=jwt), nat)

    for _ in range(4):
        with pytest.raises(Refused, match="not authorized"):
            await log_in("other", good)
    for _ in range(3):
        with pytest.raises(Refused, match="signature"):
            await log_in("dev", forged)
    with pytest.raises(TooOften):
        await log_in("dev", forged)
    await log_in("dev", good)
    with pytest.raises(Refused, match="signature"):
        await log_in("other", forged)
    with pytest.raises(UnknownToken):
        await login.tokens.authenticate("guess", nat)


SITE = f"/subscriptions/{SUB_A}/resourceGroups/rg-one/providers/Microsoft.Web/sites/"
SITE_FIELDS = {"subscription_id": SUB_A, "resource_group_name": "rg-one"}
SHARED_IDENTITY = "0b000000-0000-4000-8000-000000000021"


async def test_resource_whose_own_identity_is_null_is_accepted(login: Login, cloud: Cloud) -> None:
    await login.role(
        "site", bound_service_principal_ids=SHARED_IDENTITY, bound_subscription_ids=SUB_A
    )
    assigned = {"principalId": SHARED_IDENTITY, "clientId": None}
    identity = {"type": "UserAssigned", "principalId": None, "tenantId": None}
    body = {
        "location": None,
        "identity": {**identity, "userAssignedIdentities": {"one": assigned, "two": None}},
    }
    cloud.fail(service="resource_manager", path="sites/app-user", status=200, body=body)
    jwt = cloud.fake.mint({"resource_id": f"{SITE}app-user", "audience": RESOURCE})["access_token"]
    await login.log_in(jwt, "site", resource_id=f"{SITE}app-user", **SITE_FIELDS)


async def test_refusal_shows_no_secret_that_the_cloud_repeats(login: Login, cloud: Cloud) -> None:
    echo = {"error": "invalid", "client_secret": "hidden-1", "sent": "client_secret=hidden-2&a=b"}
    cloud.fail(service="directory", path="oauth2/v2.0/token", status=400, body=echo)
    with pytest.raises(LoginRefused) as raised:
        await login.log_in_machine(cloud.mint_machine())
    assert "ClientSecretCredential authentication failed" in str(raised.value)
    assert "hidden" not in f"{raised.value} {raised.value.reason}"


@pytest.mark.parametrize("link", ["http://[x", "http://a..b/", "/next", "http://evil.example/"])
async def test_invalid_link_to_the_next_page_is_not_followed(
    login: Login, cloud: Cloud, link: str
) -> None:
    await login.role(
        "site", bound_service_principal_ids=SHARED_IDENTITY, bound_subscription_ids=SUB_A
    )
    body = {"value": [], "nextLink": link}
    cloud.fail(service="resource_manager", path="userAssignedIdentities", status=200, body=body)
    jwt = cloud.fake.mint({"resource_id": f"{SITE}app-user", "audience": RESOURCE})["access_token"]
    with pytest.raises(LoginRefused, match="match expected identities"):
        await login.log_in(jwt, "site", resource_id=f"{SITE}app-one", **SITE_FIELDS)
