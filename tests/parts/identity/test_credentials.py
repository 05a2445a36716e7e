"""The daemon's own access tokens: cached, renewed, and obtained from each source."""

from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from storage.errors import Refused
from tests.parts.identity.conftest import APPLICATION, Clock, Cloud, Login

TOKENS = "oauth2/v2.0/token"


async def test_cached_login_of_a_machine_needs_one_request(login: Login, cloud: Cloud) -> None:
    jwt = cloud.mint_machine()
    await login.log_in_machine(jwt)
    cloud.fake.log.clear()
    await login.log_in_machine(jwt)
    assert cloud.asked() == cloud.asked("resource_manager")
    assert len(cloud.asked()) == 1


async def test_concurrent_machine_logins_share_one_access_token(login: Login, cloud: Cloud) -> None:
    jwt = cloud.mint_machine()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(login.log_in_machine, jwt)
    assert len(cloud.asked("directory", TOKENS)) == 1


async def test_access_token_is_cached_until_five_minutes_before_its_expiry(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    jwt = cloud.mint_machine()
    await login.log_in_machine(jwt)
    clock.advance(3599 - 301)
    await login.log_in_machine(jwt)
    assert len(cloud.asked("directory", TOKENS)) == 1
    clock.advance(5)
    await login.log_in_machine(jwt)
    assert len(cloud.asked("directory", TOKENS)) == 2


async def test_token_in_use_is_renewed_before_its_expiry(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    await login.log_in_machine(cloud.mint_machine())
    credentials = login.methods.credentials
    clock.advance(3599 - 700)
    await credentials.renew_due()
    assert len(cloud.asked("directory", TOKENS)) == 1
    assert credentials.ages()["cloudid/"] > 2800
    clock.advance(200)
    await credentials.renew_due()
    assert len(cloud.asked("directory", TOKENS)) == 2
    assert credentials.ages()["cloudid/"] < 100


async def test_failed_renewal_is_retried_with_growing_delays(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    jwt = cloud.mint_machine()
    await login.log_in_machine(jwt)
    clock.advance(3599 - 590)
    cloud.fail(service="directory", path=TOKENS, status=503)
    credentials = login.methods.credentials
    for _ in range(3):
        await credentials.renew_due()
    assert len(cloud.asked("directory", TOKENS)) == 2
    await login.log_in_machine(jwt)
    clock.advance(31)
    await credentials.renew_due()
    assert len(cloud.asked("directory", TOKENS)) == 3


async def test_token_refused_before_its_expiry_is_replaced(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    jwt = cloud.mint_machine()
    await login.log_in_machine(jwt)
    clock.advance(61)
    cloud.fail(service="resource_manager", status=401, times=1)
    await login.log_in_machine(jwt)
    assert len(cloud.asked("directory", TOKENS)) == 2


async def test_new_token_that_is_refused_is_not_replaced(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    jwt = cloud.mint_machine()
    cloud.fail(service="resource_manager", status=401)
    for seconds, tokens in ((0, 1), (30, 1), (31, 2), (30, 2)):
        clock.advance(seconds)
        with pytest.raises(Refused, match="unable to retrieve virtual machine metadata"):
            await login.log_in_machine(jwt)
        assert len(cloud.asked("directory", TOKENS)) == tokens


async def test_slow_renewal_delays_no_other(login: Login, cloud: Cloud, clock: Clock) -> None:
    credentials = login.methods.credentials
    client = login.methods._login.client(login.mount)
    other = msgspec.structs.replace(login.mount, accessor="other", path="other/")
    for mount in (login.mount, other):
        one = msgspec.structs.replace(client, mount=mount)
        await credentials.access_token(one, "https://management.azure.com/")
    clock.advance(3599 - 590)
    cloud.fail(service="directory", path=TOKENS, times=1, delay_s=1000)
    with trio.move_on_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(credentials.renew_due)
            while min(credentials.ages().values()) > 1000:
                await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
    assert sorted(age > 1000 for age in credentials.ages().values()) == [False, True]


async def test_unused_token_is_dropped(login: Login, cloud: Cloud, clock: Clock) -> None:
    cloud.fake.world["access_token_ttl"] = 86_400
    await login.log_in_machine(cloud.mint_machine())
    clock.advance(4 * 3600)
    await login.methods.credentials.renew_due()
    assert login.methods.credentials.ages() == {}


async def test_changed_secret_requests_another_token(login: Login, cloud: Cloud) -> None:
    jwt = cloud.mint_machine()
    await login.log_in_machine(jwt)
    await login.configure(client_secret="wrong")
    with pytest.raises(Refused) as raised:
        await login.log_in_machine(jwt)
    assert "ClientSecretCredential authentication failed." in str(raised.value)
    assert "AADSTS7000215" in str(raised.value)
    assert "wrong" not in str(raised.value)


async def test_credential_without_a_secret_comes_from_the_metadata_service(
    login: Login, cloud: Cloud
) -> None:
    await login.configure(client_id="", client_secret="")
    await login.log_in_machine(cloud.mint_machine())
    assert cloud.asked("metadata") == ["/metadata/identity/oauth2/token"]
    assert cloud.asked("directory", TOKENS) == []


async def test_client_id_without_a_managed_identity_does_not_prevent_a_login(
    login: Login, cloud: Cloud
) -> None:
    await login.configure(client_secret="")
    await login.log_in_machine(cloud.mint_machine())
    assert len(cloud.asked("metadata")) == 2


async def test_federated_token_from_the_platform_is_exchanged(
    login: Login, cloud: Cloud, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("an assertion\n")
    await login.configure(client_secret="", token_file=str(file))
    with pytest.raises(Refused, match="AADSTS50027"):
        await login.log_in_machine(cloud.mint_machine())
    (sent,) = [item["body"] for item in cloud.fake.log if item["path"].endswith(TOKENS)]
    assert sent["client_assertion"] == "an assertion"
    assert sent["client_id"] == APPLICATION


async def test_missing_token_file_is_named(login: Login, cloud: Cloud, tmp_path: Path) -> None:
    await login.configure(client_secret="", token_file=str(tmp_path / "nothing"))
    with pytest.raises(Refused, match="nothing cannot be read"):
        await login.log_in_machine(cloud.mint_machine())


@pytest.mark.parametrize(
    "body",
    [
        *("", "nonsense", [], {"access_token": 5}),
        {"access_token": "a", "expires_in": -1},
        {"access_token": "a", "expires_in": "9" * 5000},
        {"access_token": "a", "expires_in": "\u0663"},
        {"access_token": "a\r\nX: y"},
        {"access_token": "\xe9"},
    ],
)
async def test_response_without_a_token_is_reported(
    login: Login, cloud: Cloud, body: object
) -> None:
    cloud.fail(service="directory", path=TOKENS, status=200, body=body)
    with pytest.raises(Refused, match="the answer holds no token"):
        await login.log_in_machine(cloud.mint_machine())
