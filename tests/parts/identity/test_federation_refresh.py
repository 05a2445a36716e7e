"""The federation credential: refreshed without logins, and stored for the next start."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from uuid import uuid4

import pytest

from daemon.acl.seal import EnvelopeCipher
from daemon.config.settings import Settings
from daemon.identity import mounts
from daemon.identity.credentials import CloudClient
from daemon.identity.federation import ClientAssertions
from daemon.identity.issuer import Issuer
from daemon.identity.method_config import federation_token_path
from daemon.identity.methods import open_methods
from daemon.text.request_fields import RequestFields
from storage.errors import Refused
from storage.queries import secrets
from tests.parts.identity.conftest import Clock, Cloud, Login
from tests.parts.identity.test_credentials import TOKENS

SEAL = EnvelopeCipher({1: bytes(32)})
MINUTE = 60


def exchanges(cloud: Cloud) -> int:
    return len(cloud.asked("directory", TOKENS))


def kept(login: Login) -> bytes | None:
    return login.store.read(lambda db: secrets.find(db, federation_token_path(login.mount)))


@pytest.fixture
async def federated(login: Login, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Login:
    """Return login methods whose mount has no secret; the directory trusts the daemon."""

    async def vouch(vouching: object, client: CloudClient) -> str:
        return f"a.{client.mount.accessor}.c"

    async def believe(app: object, assertion: str) -> None:
        assert assertion.count(".") == 2

    monkeypatch.setattr(ClientAssertions, "assertion", vouch)  # for `restarted`
    monkeypatch.setattr(login.methods.credentials, "_assertion", partial(vouch, None))
    cloud.fake.check_assertion = believe
    await login.configure(client_secret="", identity_token_audience="api://exchange")
    return login


@asynccontextmanager
async def restarted(login: Login, clock: Clock, config: Settings) -> AsyncIterator[Login]:
    """Reopen the login methods of a store, as after a restart."""
    ids = iter(lambda: str(uuid4()), "")
    issuer = Issuer(login.store, SEAL, clock, ids)
    parts = (login.store, clock, SEAL, login.tokens, issuer, ids, config)
    async with open_methods(*parts) as methods:
        yield Login(methods, login.store, login.tokens, login.mount)


async def test_credential_is_fetched_without_a_login(federated: Login, cloud: Cloud) -> None:
    await federated.methods.warm.refresh()
    assert exchanges(cloud) == 1
    await federated.log_in_machine(cloud.mint_machine())
    assert exchanges(cloud) == 1


async def test_credential_is_renewed_every_hour_without_a_login(
    federated: Login, cloud: Cloud, clock: Clock
) -> None:
    cloud.fake.world["access_token_ttl"] = 24 * 3600
    for hour in range(1, 6):
        await federated.methods.warm.refresh()
        assert exchanges(cloud) == hour
        clock.advance(59 * MINUTE)
        await federated.methods.warm.refresh()
        await federated.methods.credentials.renew_due()
        assert exchanges(cloud) == hour
        clock.advance(2 * MINUTE)


async def test_credential_of_a_mount_with_a_secret_is_not_refreshed(
    login: Login, cloud: Cloud
) -> None:
    await login.methods.warm.refresh()
    assert exchanges(cloud) == 0
    await login.log_in_machine(cloud.mint_machine())
    assert kept(login) is None


async def test_start_during_a_directory_outage_uses_the_stored_credential(
    federated: Login, cloud: Cloud, clock: Clock, config: Settings
) -> None:
    await federated.log_in_machine(cloud.mint_machine())
    clock.advance(50 * MINUTE)
    cloud.fail(service="directory", path=TOKENS, status=503)
    async with restarted(federated, clock, config) as after:
        done = await after.log_in_machine(cloud.mint_machine())
    assert after.tokens.resolve(done.secret).token.mount == after.mount.accessor


async def test_expired_credential_is_not_used_after_a_start(
    federated: Login, cloud: Cloud, clock: Clock, config: Settings
) -> None:
    await federated.log_in_machine(cloud.mint_machine())
    clock.advance(61 * MINUTE)
    async with restarted(federated, clock, config) as after:
        await after.log_in_machine(cloud.mint_machine())
    assert exchanges(cloud) >= 2


async def test_stored_credential_is_encrypted(federated: Login, cloud: Cloud) -> None:
    await federated.methods.warm.refresh()
    client = federated.methods.warm._client_of(federated.mount)
    cached_token = federated.methods.credentials.cached_token(
        client, client.settings.endpoints.audience
    )
    sealed = kept(federated)
    assert cached_token is not None
    assert sealed is not None
    assert cached_token.token.encode() not in sealed
    assert cached_token.token.encode() in SEAL.unseal(
        sealed, federation_token_path(federated.mount)
    )


async def test_changed_configuration_deletes_the_credential(federated: Login, cloud: Cloud) -> None:
    await federated.methods.warm.refresh()
    await federated.configure(client_secret="", identity_token_audience="api://other")
    assert kept(federated) is None
    await federated.methods.warm.refresh()
    assert kept(federated) is not None
    await federated.methods.unconfigure(federated.mount)
    assert kept(federated) is None


async def test_removed_mount_leaves_no_stored_credential(federated: Login, cloud: Cloud) -> None:
    await federated.methods.warm.refresh()
    await mounts.disable(federated.store, federated.tokens, "cloudid/")
    assert kept(federated) is None
    await federated.methods.warm.refresh()
    assert exchanges(cloud) == 1


async def test_age_of_an_expired_credential_is_reported_until_its_renewal(
    federated: Login, cloud: Cloud, clock: Clock
) -> None:
    methods = federated.methods
    await methods.warm.refresh()
    cloud.fail(service="directory", path=TOKENS, status=503)
    for _ in range(30):
        clock.advance(5 * MINUTE)
        await methods.warm.refresh()
        await methods.credentials.renew_due()
    assert methods.token_ages()["cloudid/"] == pytest.approx(150 * MINUTE, abs=1)
    cloud.heal()
    await federated.log_in_machine(cloud.mint_machine(offsets={"exp": 4 * 60 * MINUTE}))
    assert methods.token_ages()["cloudid/"] < 1


async def test_credential_that_was_never_granted_has_an_age(
    federated: Login, cloud: Cloud, clock: Clock
) -> None:
    methods = federated.methods
    assert methods.token_ages() == {}
    cloud.fail(service="directory", path=TOKENS, status=503)
    await methods.warm.refresh()
    clock.advance(2 * 60 * MINUTE)
    await methods.warm.refresh()
    assert methods.token_ages()["cloudid/"] == pytest.approx(120 * MINUTE, abs=1)
    await mounts.disable(federated.store, federated.tokens, "cloudid/")
    methods.forget(federated.mount.accessor)
    assert methods.token_ages() == {}


async def test_corrected_configuration_is_tried_immediately(federated: Login, cloud: Cloud) -> None:
    cloud.fail(service="directory", path=TOKENS, status=401)
    await federated.methods.warm.refresh()
    cloud.heal()
    await federated.configure(client_secret="", identity_token_audience="api://other")
    await federated.methods.warm.refresh()
    assert kept(federated) is not None


async def test_failing_directory_is_queried_with_growing_delays(
    federated: Login, cloud: Cloud, clock: Clock
) -> None:
    cloud.fail(service="directory", path=TOKENS, status=503)
    for asked in (1, 1, 2, 2):
        await federated.methods.warm.refresh()
        assert exchanges(cloud) == asked
        clock.advance(20)
    cloud.heal()
    clock.advance(5 * MINUTE)
    await federated.methods.warm.refresh()
    assert kept(federated) is not None


async def test_stored_credential_of_another_mount_is_not_used(
    federated: Login, cloud: Cloud, clock: Clock, config: Settings
) -> None:
    """An encrypted value is bound to its path: a moved row cannot be decrypted."""
    await federated.methods.warm.refresh()
    sealed = kept(federated)
    other = mounts.new_mount("other/", RequestFields({"type": "cloudid"}), str(uuid4()))
    await mounts.enable(federated.store, other)
    login = Login(federated.methods, federated.store, federated.tokens, other)
    await login.configure(client_secret="", identity_token_audience="api://exchange")
    assert sealed is not None
    await federated.store.write(lambda tx: secrets.put(tx, federation_token_path(other), sealed))
    cloud.fail(service="directory", path=TOKENS, status=400)
    async with restarted(login, clock, config) as after:
        await after.role("vm", bound_service_principal_ids="*", bound_group_ids="g")
        client = after.methods.warm._client_of(other)
        assert (
            after.methods.credentials.cached_token(client, client.settings.endpoints.audience)
            is None
        )
        with pytest.raises(Refused):
            await after.methods.credentials.refresh(client, client.settings.endpoints.audience)
