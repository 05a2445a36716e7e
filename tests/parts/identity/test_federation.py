"""Identity tokens with which the daemon logs in to a cloud instead of a client secret."""

import pytest

from daemon.config.settings import Settings
from daemon.identity.cloud_endpoints import complete
from daemon.identity.credentials import CloudClient
from daemon.identity.federation import ClientAssertions, assertion_subject
from storage.records.identity import MethodConfig
from storage.store import Store
from tests.parts.identity.test_issuer import Clock, Issuer, clock, issuer, part_of
from tests.parts.identity.test_lazy_methods import MOUNT

__all__ = ["clock", "issuer"]  # fixtures
_DAY = 24 * 3600


@pytest.mark.parametrize(
    ("configured", "ttl"), [(0, 3600), (60, 60), (30 * _DAY, 30 * _DAY), (31 * _DAY, 30 * _DAY)]
)
async def test_identity_token_names_the_mount_and_expires(
    store: Store, clock: Clock, issuer: Issuer, configured: int, ttl: int
) -> None:
    config = MethodConfig(
        tenant_id="t",
        resource="r",
        identity_token_audience="api://us",
        identity_token_ttl=configured,
    )
    client = CloudClient(mount=MOUNT, settings=complete(config, Settings(), {}), secret="")
    token = await ClientAssertions(store, clock, issuer, Settings()).assertion(client)
    claims = part_of(token, 1)
    assert (claims["sub"], claims["aud"]) == (assertion_subject(MOUNT), ["api://us"])
    assert claims["exp"] - claims["iat"] == ttl
