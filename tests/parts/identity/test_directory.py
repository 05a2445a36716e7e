"""Keys of a directory: fetched as rarely as possible, and trusted no longer than permitted."""

import pytest
import trio

from daemon.identity import mounts
from daemon.identity.jwt_verification import UnknownKey
from storage.errors import LoginRefused, Refused, UnknownToken
from storage.queries import directory_cache
from storage.records.base import HOUR, SECOND
from tests.fakes.fakecloud import TENANT, SigningKey
from tests.parts.identity.conftest import Clock, Cloud, Login

DAY = 24 * HOUR // SECOND
OTHER_TENANT = "99999999-2222-4333-8444-555555555555"


async def test_keys_are_fetched_once_and_cached(login: Login, cloud: Cloud) -> None:
    jwt = cloud.mint()
    for _ in range(3):
        await login.log_in(jwt)
    assert [path.rpartition("/")[2] for path in cloud.asked("directory")] == [
        "openid-configuration",
        "keys",
    ]


async def test_concurrent_logins_share_one_fetch(login: Login, cloud: Cloud) -> None:
    jwt = cloud.mint()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(login.log_in, jwt)
    assert len(cloud.asked("directory")) == 2


async def test_new_key_is_fetched_when_first_used_by_a_token(login: Login, cloud: Cloud) -> None:
    await login.log_in(cloud.mint())
    for _ in range(3):
        rotate(cloud, keep_old=True)
        await login.log_in(cloud.mint())
    assert len(cloud.asked("directory", "keys")) == 4


def rotate(cloud: Cloud, *, keep_old: bool) -> None:
    new = SigningKey.new()
    if keep_old:
        cloud.fake.keys.append(new)
    else:
        cloud.fake.retired.extend(cloud.fake.keys)
        cloud.fake.keys = [new]


async def test_a_flood_of_forged_tokens_causes_one_fetch(login: Login, cloud: Cloud) -> None:
    await login.log_in(cloud.mint())
    before = len(cloud.asked("directory"))
    forged = [cloud.mint(key="rogue", header={"kid": f"k{at}"}) for at in range(30)]
    forged += [cloud.mint(key="rogue", header={"kid": None}) for _ in range(5)]
    refused = []

    async def attempt(jwt: str) -> None:
        try:
            await login.log_in(jwt)
        except Refused as error:
            refused.append(str(error))

    async with trio.open_nursery() as nursery:
        for jwt in forged:
            nursery.start_soon(attempt, jwt)
    await attempt(forged[0])
    assert set(refused) == {"failed to verify signature: failed to verify id token signature"}
    assert len(refused) == 36
    assert len(cloud.asked("directory")) - before == 2


async def test_forged_tokens_cause_no_requests_to_an_unreachable_directory(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    await login.log_in(cloud.mint())
    cloud.fail(service="directory", close=True)
    before = len(cloud.asked("directory"))
    for _ in range(5):
        with pytest.raises(Refused):
            await login.log_in(cloud.mint(key="rogue"))
    assert len(cloud.asked("directory")) - before == 1
    await login.log_in(cloud.mint())
    cloud.heal()
    rotate(cloud, keep_old=True)
    clock.advance(31)
    await login.log_in(cloud.mint())


async def test_refusal_during_the_pause_names_the_failed_fetch(login: Login, cloud: Cloud) -> None:
    """A token with a new key is not a forgery if the keys could not be fetched."""
    await login.log_in(cloud.mint())
    rotate(cloud, keep_old=True)
    cloud.fail(service="directory", path="keys", status=503, times=1)
    for _ in range(2):
        with pytest.raises(LoginRefused, match="get keys failed: 503") as raised:
            await login.log_in(cloud.mint())
        assert not isinstance(raised.value.__cause__, UnknownKey)
    assert len(cloud.asked("directory", "keys")) == 2


async def test_keys_may_have_null_in_place_of_a_text(login: Login, cloud: Cloud) -> None:
    key = {**cloud.fake.keys[-1].jwk(None), "use": None}
    others = [None, {**key, "kid": None}, {"kty": None}]
    cloud.fail(service="directory", path="keys", status=200, body={"keys": [*others, key]})
    await login.log_in(cloud.mint())


async def test_unknown_key_is_fetched_again_after_the_pause(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    await login.log_in(cloud.mint())
    with pytest.raises(Refused):
        await login.log_in(cloud.mint(key="rogue"))
    rotate(cloud, keep_old=True)
    with pytest.raises(Refused):
        await login.log_in(cloud.mint())
    clock.advance(31)
    await login.log_in(cloud.mint())


async def test_logins_continue_during_a_directory_outage(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    await login.log_in(cloud.mint())
    cloud.fail(service="directory", status=503)
    clock.advance(6 * DAY)
    late = {"iat": 6 * DAY, "nbf": 6 * DAY, "exp": 8 * DAY}
    await login.log_in(cloud.mint(offsets=late))
    clock.advance(2 * DAY)
    with pytest.raises(Refused, match="503"):
        await login.log_in(cloud.mint(offsets={"nbf": 0, "exp": 9 * DAY}))


async def test_response_without_keys_does_not_replace_cached_keys(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    await login.log_in(cloud.mint())
    cloud.fail(service="directory", path="discovery/keys", status=200, body={"keys": []})
    clock.advance(DAY / 2)
    await login.methods.directories.renew_due()
    assert len(cloud.asked("directory")) == 4
    await login.log_in(cloud.mint())


async def test_keys_in_use_are_renewed_before_their_expiry(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    await login.log_in(cloud.mint())
    directories = login.methods.directories
    await directories.renew_due()
    assert len(cloud.asked("directory")) == 2
    clock.advance(DAY / 2)
    await directories.renew_due()
    assert len(cloud.asked("directory")) == 4


async def test_age_of_keys_grows_while_their_directory_is_down(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    directories = login.methods.directories
    assert directories.ages() == {}
    await login.log_in(cloud.mint())
    cloud.fail(service="directory", status=503)
    clock.advance(2 * DAY)
    await directories.renew_due()
    assert directories.ages()["cloudid/"] == pytest.approx(2 * DAY, abs=1)
    cloud.heal()
    clock.advance(600)
    await directories.renew_due()
    assert directories.ages()["cloudid/"] < 1


async def test_failed_renewal_is_retried_later(login: Login, cloud: Cloud, clock: Clock) -> None:
    await login.log_in(cloud.mint())
    clock.advance(DAY / 2)
    cloud.fail(service="directory", close=True)
    directories = login.methods.directories
    for _ in range(3):
        await directories.renew_due()
    assert len(cloud.asked("directory")) == 3
    clock.advance(61)
    await directories.renew_due()
    assert len(cloud.asked("directory")) == 4
    cloud.heal()
    await login.log_in(cloud.mint(offsets={"exp": DAY}))


async def test_removed_key_is_not_accepted(login: Login, cloud: Cloud) -> None:
    old = cloud.mint()
    await login.log_in(old)
    rotate(cloud, keep_old=False)
    await login.log_in(cloud.mint())
    with pytest.raises(Refused, match="signature"):
        await login.log_in(old)


async def test_new_configuration_fetches_the_keys_again(login: Login, cloud: Cloud) -> None:
    await login.log_in(cloud.mint())
    await login.configure()
    await login.log_in(cloud.mint())
    assert len(cloud.asked("directory")) == 4


async def test_keys_fetched_during_a_change_of_the_tenant_are_not_cached(
    login: Login, cloud: Cloud
) -> None:
    jwt = cloud.mint()
    cloud.fail(service="directory", path=f"{TENANT}/.well-known", delay_s=0.2, times=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(login.log_in, jwt)
        await until_asked(cloud, "openid-configuration")
        await login.configure(tenant_id=OTHER_TENANT)
    with pytest.raises(Refused, match="not found"):
        await login.log_in(jwt)


async def test_keys_fetched_during_a_change_of_the_cloud_are_not_cached(
    login: Login, cloud: Cloud
) -> None:
    jwt = cloud.mint()
    cloud.fail(service="directory", path="keys", delay_s=0.2, times=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(login.log_in, jwt)
        await until_asked(cloud, "keys")
        await login.configure(environment="AzureChinaCloud")
    cloud.fail(service="directory", status=503)
    with pytest.raises(Refused, match="503"):
        await login.log_in(jwt)


async def test_keys_of_a_deleted_mount_are_not_stored(login: Login, cloud: Cloud) -> None:
    cloud.fail(service="directory", path="keys", delay_s=0.2, times=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refused_login, login, cloud.mint())
        await until_asked(cloud, "keys")
        await mounts.disable(login.store, login.tokens, login.mount.path)
    accessor = login.mount.accessor
    assert login.store.read(lambda db: directory_cache.find(db, accessor)) is None


async def refused_login(login: Login, jwt: str) -> None:
    with pytest.raises(UnknownToken):
        await login.log_in(jwt)


async def until_asked(cloud: Cloud, path: str) -> None:
    """Wait until the cloud has received a request."""
    with trio.fail_after(5):
        while not cloud.asked("directory", path):
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"path": "openid", "status": 500, "body": "oops"}, "500 Internal Server Error: oops"),
        (
            {"path": "openid", "status": 200, "body": "not json"},
            "unable to unmarshal discovery url",
        ),
        ({"path": "openid", "status": 200, "body": []}, "unable to unmarshal discovery url"),
        ({"path": "openid", "close": True}, 'Get "http://'),
        ({"path": "openid", "truncate": 20}, 'Get "http://'),
        (
            {"path": "openid", "status": 302, "headers": {"Location": "http://127.0.0.1:1/"}},
            "302 Found",
        ),
        (
            {"path": "keys", "status": 500, "body": "oops"},
            "failed to verify signature: fetching keys oidc: get keys failed: "
            "500 Internal Server Error oops",
        ),
        ({"path": "keys", "status": 200, "body": {"keys": 5}}, "get keys failed"),
        ({"path": "keys", "status": 200, "body": {"keys": [{}] * 5000}}, "or 5000 values"),
        ({"path": "keys", "status": 200, "body": " " * (2**18 + 1)}, "more than 262144 bytes"),
        (
            {"path": "openid", "status": 200, "body": {"x": [{}] * 50_000}},
            "unable to unmarshal discovery url",
        ),
    ],
)
async def test_unusable_response_is_reported_and_not_cached(
    login: Login, cloud: Cloud, fault: dict[str, object], text: str
) -> None:
    cloud.fail(service="directory", times=1, **fault)
    with pytest.raises(Refused) as raised:
        await login.log_in(cloud.mint())
    assert text in str(raised.value)
    cloud.heal()
    await login.log_in(cloud.mint())


async def test_response_with_unusable_keys_is_fetched_again_immediately(
    login: Login, cloud: Cloud
) -> None:
    cloud.fail(
        service="directory", path="keys", times=1, status=200, body={"keys": [{"kty": "RSA"}]}
    )
    await login.log_in(cloud.mint())
    assert len(cloud.asked("directory", "keys")) == 2
