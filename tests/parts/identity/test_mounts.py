"""Mounts: a move keeps the configuration and revokes the issued tokens."""

from typing import Any

import msgspec
import pytest
import trio

from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.identity import mounts
from daemon.identity.lazy_methods import LazyMethods
from daemon.text.request_fields import RequestFields
from daemon.web.dispatcher import Dispatcher
from daemon.web.request_head import RequestHead
from storage.errors import Invalid, Malformed, Refused, StorageFull, UnknownToken, UnusableToken
from storage.queries import identity
from storage.queries import mounts as stored
from storage.records.acl import Token
from storage.records.identity import Mount, MountConfig
from tests.parts.api.requests import parts_of
from tests.parts.identity.conftest import DAMAGES, PRINCIPAL, Cloud, Login, damage
from tests.samples import NOW


async def move(login: Login, source: str, target: str) -> None:
    await mounts.move(login.store, login.tokens, source, target, "id")


def present_mount(login: Login) -> Mount:
    mount = login.store.read(lambda db: stored.by_accessor(db, login.mount.accessor))
    assert mount is not None
    return mount


async def test_moved_mount_keeps_its_roles_and_revokes_its_tokens(
    login: Login, cloud: Cloud
) -> None:
    done = await login.log_in(cloud.mint())
    await move(login, "auth/cloudid/", "auth/moved/here/")
    assert login.store.read(mounts.paths) == ["moved/here/"]
    assert login.store.read(lambda db: identity.role(db, login.mount.accessor, "dev"))
    with pytest.raises(UnknownToken):
        login.tokens.resolve(done.secret)


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        ("auth/token/", "auth/x/", 'cannot remount "auth/token/"'),
        ("cloudid/", "auth/x/", 'no matching mount at "cloudid/"'),
        ("auth/cloudid/", "auth/token/", "path is already in use at token/"),
        ("auth/cloudid/", "auth/token/below/", "path is already in use at token/"),
        ("auth/cloudid/", "auth/other/", "path is already in use at other/"),
        ("auth/cloudid/", "auth/cloudid/", "path is already in use at cloudid/"),
        ("auth/cloudid/", "auth/", "a mount needs a path of 1 to 256 characters"),
        ("auth/cloudid/", f"auth/{'x' * 300}/", "a mount needs a path of 1 to 256 characters"),
    ],
)
async def test_impossible_move_changes_nothing(
    login: Login, source: str, target: str, text: str
) -> None:
    other = mounts.new_mount("other/", RequestFields({"type": "cloudid"}), "00000000-other")
    await mounts.enable(login.store, other)
    before = login.store.read(stored.list_readable)
    with pytest.raises(Invalid) as raised:
        await move(login, source, target)
    assert text in str(raised.value)
    assert login.store.read(stored.list_readable) == before


@pytest.mark.parametrize("value", ["x", 5, True, ["x"]])
def test_configuration_of_a_new_mount_must_be_an_object(value: object) -> None:
    fields = RequestFields({"type": "cloudid", "config": value})
    with pytest.raises(Malformed, match="expected a map"):
        mounts.new_mount("m/", fields, "00000000")


@pytest.mark.parametrize("value", [None, "", [], {}])
def test_empty_configuration_of_a_new_mount_is_the_default(value: object) -> None:
    fields = RequestFields({"type": "cloudid", "config": value})
    assert mounts.new_mount("m/", fields, "00000000").config == MountConfig()


async def test_interrupted_revocation_after_a_move_is_finished_at_the_next_start(
    login: Login, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await login.log_in(cloud.mint())
    child = Token(accessor="child", parent=before.token.accessor, created_at=NOW)
    issued = await login.tokens.issue(child)
    with monkeypatch.context() as patched:
        patched.setattr(login.tokens, "revoke_mount", interrupted)
        with pytest.raises(StorageFull):
            await move(login, "auth/cloudid/", "auth/moved/")
    login.mount = present_mount(login)
    after = await login.log_in(cloud.mint())
    await mounts.finish_disabling(login.store, login.tokens)
    for secret in (before.secret, issued.secret):
        with pytest.raises(UnknownToken):
            login.tokens.resolve(secret)
    assert login.tokens.resolve(after.secret).token == after.token


async def interrupted(_mount: str) -> None:
    raise StorageFull("no room")


async def test_moved_mount_revokes_its_batch_tokens(login: Login, cloud: Cloud) -> None:
    await login.role("batch", bound_service_principal_ids=PRINCIPAL, token_type="batch")
    before = await login.log_in(cloud.mint(), "batch")
    assert login.tokens.resolve(before.secret).token.kind == "batch"
    for source, target, move_id in (("cloudid", "a", "1"), ("a", "cloudid", "2")):
        places = (f"auth/{source}/", f"auth/{target}/")
        await mounts.move(login.store, login.tokens, *places, move_id)
        with pytest.raises(UnusableToken):
            login.tokens.resolve(before.secret)
    login.mount = present_mount(login)
    after = await login.log_in(cloud.mint(), "batch")
    assert login.tokens.resolve(after.secret).token.kind == "batch"


async def test_tuning_changes_only_the_given_ttls(login: Login) -> None:
    async def tuned(**fields: str) -> tuple[int, int]:
        await mounts.tune(login.store, "cloudid/", RequestFields(fields))
        mount = login.store.read(lambda db: stored.find(db, "cloudid/"))
        assert mount is not None
        return mount.config.default_lease_ttl, mount.config.max_lease_ttl

    assert await tuned(default_lease_ttl="1h", max_lease_ttl="2h") == (3600, 7200)
    assert await tuned(default_lease_ttl="2h") == (7200, 7200)
    assert await tuned(max_lease_ttl="3h") == (7200, 10800)
    with pytest.raises(Invalid, match="max lease TTL of 10800 would be less than"):
        await tuned(default_lease_ttl="10801s")


async def test_mount_can_move_below_its_own_path(login: Login) -> None:
    await move(login, "auth/cloudid/", "auth/cloudid/deeper/")
    assert login.store.read(mounts.paths) == ["cloudid/deeper/"]


@pytest.mark.parametrize("network", ["zz", "1.2.3", "300.1.1.1/8", "10.0.0.0/33", "example.org"])
async def test_role_with_an_invalid_network_is_refused_and_unchanged(
    login: Login, network: str
) -> None:
    await login.role("dev", token_bound_cidrs=["10.0.0.0/8"])
    with pytest.raises(Invalid, match="error parsing address"):
        await login.role("dev", token_bound_cidrs=["10.0.0.0/8", network])
    role = login.store.read(lambda db: identity.role(db, login.mount.accessor, "dev"))
    assert role is not None
    assert role.token_bound_cidrs == ["10.0.0.0/8"]


@pytest.mark.parametrize("limit", [{"token_num_uses": 1}, {"token_period": 1}])
async def test_role_of_batch_tokens_has_no_limit_that_nothing_enforces(
    login: Login, limit: dict[str, int]
) -> None:
    with pytest.raises(Invalid, match="'token_type' cannot be 'batch'"):
        await login.role("dev", token_type="batch", **limit)  # a token type


async def test_role_of_batch_or_limited_tokens_is_stored(login: Login) -> None:
    await login.role("dev", token_type="batch")  # a token type
    await login.role("dev", token_type="service", token_num_uses=1)
    role = login.store.read(lambda db: identity.role(db, login.mount.accessor, "dev"))
    assert role is not None
    assert role.token_num_uses == 1


async def test_token_is_renewed_within_the_limits_of_its_role(login: Login, cloud: Cloud) -> None:
    await login.role("dev", token_ttl="1h", token_max_ttl="2h")
    token = login.tokens.resolve((await login.log_in(cloud.mint())).secret).token
    limits = login.store.read(lambda db: mounts.renewal_limits(db, token))
    assert (limits.ttl, limits.max_ttl, limits.period) == (3600, 7200, 0)


@pytest.mark.parametrize("deleted", ["mount", "role"])
async def test_token_whose_mount_or_role_was_deleted_cannot_be_renewed(
    login: Login, cloud: Cloud, deleted: str
) -> None:
    token = login.tokens.resolve((await login.log_in(cloud.mint())).secret).token
    mount = login.mount.accessor
    if deleted == "mount":
        await login.store.write(lambda tx: stored.remove(tx, login.mount.path))
    else:
        await login.store.write(lambda tx: identity.remove_role(tx, mount, "dev"))
    with pytest.raises(Refused, match="role dev does not exist during renewal"):
        login.store.read(lambda db: mounts.renewal_limits(db, token))


async def test_clock_leeway_is_bounded(login: Login) -> None:
    await login.configure(clock_leeway=600)
    with pytest.raises(Invalid, match="clock_leeway of 601 seconds"):
        await login.configure(clock_leeway=601)


# --- a row that a defect of the disk or another program has made unreadable ---


@pytest.fixture
async def asking(login: Login) -> Dispatcher:
    """Return the API of a store with two mounts. Tests damage the first mount."""
    other = mounts.new_mount("other/", RequestFields({"type": "cloudid"}), "00000000-other")
    await mounts.enable(login.store, other)
    await mounts.move(login.store, login.tokens, "auth/other/", "auth/later/", "the-move")
    parts = parts_of(login.store)
    parts = msgspec.structs.replace(parts, door=LazyMethods(parts.fences), tokens=login.tokens)
    return Dispatcher(parts, ROUTES, ENDPOINTS, trio.Event())


async def ask(dispatcher: Dispatcher, secret: str, method: str, path: str) -> tuple[int, Any]:
    """Send a request; return the status and the body of the response."""
    given = {"host": "localhost", "x-vault-token": secret}
    head = RequestHead(method=method, target=path.encode(), query="", headers=given)

    async def body() -> bytes:
        return b""

    answer = await dispatcher.answer(head, body)
    return answer.status, msgspec.json.decode(answer.body) if answer.body else None


@pytest.mark.parametrize("left", DAMAGES)
async def test_damaged_row_of_a_mount_is_reported_with_the_others(
    login: Login, asking: Dispatcher, left: bytes
) -> None:
    token = Token(accessor="", policies=("root",), created_at=NOW)
    secret = (await login.tokens.issue(token)).secret
    damage(login.store, "cloudid/", left)
    status, body = await ask(asking, secret, "GET", "/v1/sys/auth")
    assert (status, sorted(body["data"])) == (200, ["later/", "token/"])
    (warning,) = body["warnings"]
    assert "'cloudid/'" in warning
    assert "steward auth disable cloudid/" in warning
    status, body = await ask(asking, secret, "GET", "/v1/sys/internal/ui/mounts")
    assert (status, sorted(body["data"]["auth"])) == (200, ["later/", "token/"])
    status, body = await ask(asking, secret, "GET", "/v1/sys/internal/ui/mounts/auth/later")
    assert (status, body["data"]["path"]) == (200, "later/")
    status, body = await ask(asking, secret, "GET", "/v1/sys/remount/status/the-move")
    assert (status, body["data"]["migration_info"]["target_mount"]) == (200, "auth/later/")
    status, body = await ask(asking, secret, "GET", "/v1/sys/auth/cloudid")
    assert status == 503
    assert "the row cloudid/ of the table mounts" in body["errors"][0]
    status, _ = await ask(asking, secret, "DELETE", "/v1/sys/auth/cloudid")
    assert (status, login.store.read(mounts.paths)) == (204, ["later/"])
