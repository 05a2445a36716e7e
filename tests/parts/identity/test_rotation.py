"""Rotation of the client secret: a valid secret exists at every time."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
import trio
import trio.testing

from daemon.acl.seal import EnvelopeCipher
from daemon.identity import method_config
from daemon.identity.client_secret_rotation import GIVE_UP, SETTLES, ClientSecretRotator, is_due
from daemon.identity.method_config import client_secret
from daemon.text.request_fields import RequestFields
from storage.errors import Refused
from storage.queries import audit
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.identity import MethodConfig, Rotation
from tests.fakes.fakecloud import TENANT
from tests.parts.identity.conftest import APPLICATION, Clock, Cloud, Login

OTHER_APPLICATION = "c1000000-0000-4000-8000-000000000002"
OLD = "fake-client-secret-1"
DAY = 24 * HOUR


def restarted(login: Login) -> ClientSecretRotator:
    """Return the rotations of a daemon that has just started on the same store."""
    before = login.methods.rotations
    ids: Iterator[str] = iter(lambda: str(uuid4()), "")
    return ClientSecretRotator(
        *(before._store, before._clock, before._seal, ids),
        *(before._credentials, before._graph, before._client_of),
    )


def passwords(cloud: Cloud) -> list[str]:
    return [secret["value"] for secret in cloud.fake.world["applications"][0]["secrets"]]


def in_use(login: Login) -> str:
    seal: EnvelopeCipher = login.methods._seal
    return login.store.read(lambda db: client_secret(db, seal, login.mount))


async def works(login: Login, cloud: Cloud) -> None:
    login.methods.credentials.forget(login.mount.accessor)
    await login.log_in_machine(cloud.mint_machine())


async def test_new_secret_is_activated_and_unrelated_secrets_remain(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    rotations = login.methods.rotations
    await rotations.begin(login.mount)
    assert (len(passwords(cloud)), in_use(login)) == (2, OLD)
    await rotations.run_once()
    assert in_use(login) == OLD
    clock.advance(SETTLES / SECOND)
    await rotations.run_once()
    assert in_use(login) == passwords(cloud)[1]
    await rotations.run_once()
    assert passwords(cloud)[0] == OLD
    await works(login, cloud)


async def test_secret_created_by_steward_is_deleted_after_its_replacement(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    rotations = login.methods.rotations
    for _ in range(2):
        await rotations.begin(login.mount)
        clock.advance(SETTLES / SECOND)
        await rotations.run_once()
        await rotations.run_once()
    assert len(passwords(cloud)) == 2
    assert passwords(cloud) == [OLD, in_use(login)]


async def test_all_other_secrets_are_deleted_if_configured(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    await login.configure(remove_foreign_passwords=True)
    rotations = login.methods.rotations
    await rotations.begin(login.mount)
    clock.advance(SETTLES / SECOND)
    await rotations.run_once()
    await rotations.run_once()
    assert passwords(cloud) == [in_use(login)]
    assert rotations.state(login.mount).unclean is False


async def test_rotation_interrupted_at_any_step_is_completed_after_a_restart(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    await login.configure(remove_foreign_passwords=True)
    await restarted(login).begin(login.mount)
    await works(login, cloud)
    clock.advance(SETTLES / SECOND)
    await restarted(login).run_once()
    await works(login, cloud)
    await restarted(login).run_once()
    await works(login, cloud)
    assert passwords(cloud) == [in_use(login)]


async def test_unknown_secret_is_retried_later(login: Login, cloud: Cloud, clock: Clock) -> None:
    rotations = login.methods.rotations
    await rotations.begin(login.mount)
    clock.advance(SETTLES / SECOND)
    cloud.fail(service="directory", path="token", status=401, body={"error": "invalid_client"})
    await rotations.run_once()
    state = rotations.state(login.mount)
    assert (in_use(login), state.failures) == (OLD, 1)
    assert "ClientSecretCredential authentication failed" in state.problem
    cloud.heal()
    await rotations.run_once()
    assert in_use(login) == OLD
    clock.advance(31)
    await rotations.run_once()
    assert in_use(login) == passwords(cloud)[1]
    assert rotations.state(login.mount).problem == ""


async def test_unusable_secret_is_discarded(login: Login, cloud: Cloud, clock: Clock) -> None:
    rotations = login.methods.rotations
    await login.configure(remove_foreign_passwords=True)  # keeps the secret in use
    await rotations.begin(login.mount)
    cloud.fail(service="directory", path="token", status=401, body={"error": "invalid_client"})
    clock.advance(SETTLES / SECOND)
    await rotations.run_once()
    clock.advance(GIVE_UP / SECOND)
    await rotations.run_once()
    cloud.heal()
    await rotations.run_once()
    assert passwords(cloud) == [OLD] == [in_use(login)]
    assert rotations.state(login.mount).pending == ""


async def test_secret_pending_during_a_restart_is_activated(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    await login.methods.rotations.begin(login.mount)
    clock.advance(DAY / SECOND)
    await restarted(login).run_once()
    assert in_use(login) == passwords(cloud)[1]


async def test_created_secret_without_a_response_is_deleted_at_the_next_start(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    cloud.fail(service="graph", path="addPassword", truncate=5)
    with pytest.raises(Refused):
        await login.methods.rotations.begin(login.mount)
    assert len(passwords(cloud)) == 2
    cloud.heal()
    await restarted(login).run_once()
    assert passwords(cloud) == [OLD]
    await works(login, cloud)


async def test_concurrent_rotations_leave_a_working_secret(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    rotations = login.methods.rotations
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(rotations.begin, login.mount)
    clock.advance(SETTLES / SECOND)
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rotations.run_once)
            nursery.start_soon(rotations.run_once)
    assert passwords(cloud) == [OLD, in_use(login)]
    await works(login, cloud)


async def test_secret_written_during_a_rotation_is_preserved(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    rotations = login.methods.rotations
    await rotations.begin(login.mount)
    clock.advance(SETTLES / SECOND)
    cloud.fail(service="directory", path="token", delay_s=0.3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rotations.run_once)
        await trio.testing.wait_all_tasks_blocked()
        await login.configure(client_secret="another")
    assert in_use(login) == "another"


async def test_rotation_of_an_application_that_was_replaced_is_refused(
    login: Login, cloud: Cloud
) -> None:
    cloud.fail(service="graph", method="GET", delay_s=0.2, times=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refused_rotation, login)
        with trio.fail_after(5):
            while not cloud.asked("graph"):
                await trio.lowlevel.checkpoint()
        await login.configure(client_id=OTHER_APPLICATION)
    assert passwords(cloud) == [OLD]
    assert login.methods.rotations.state(login.mount).pending == ""


async def refused_rotation(login: Login) -> None:
    with pytest.raises(Refused, match="the configuration was changed in the meantime"):
        await login.methods.rotations.begin(login.mount)


async def test_every_step_is_audited(login: Login, cloud: Cloud, clock: Clock) -> None:
    rotations = login.methods.rotations
    await rotations.begin(login.mount)
    for _ in range(3):
        clock.advance(SETTLES / SECOND)
        await rotations.run_once()
    found = login.store.read(lambda db: audit.after(db, 0))
    assert {item.path for item in found} == {"/v1/auth/cloudid/rotate-root"}
    beginnings = [" ".join(item.reason.split()[:6]) for item in found]
    assert beginnings == [
        "a new client secret was created",
        "the new client secret works and",
        "old client secrets were removed: none",
    ]


async def test_failed_cleanup_is_repeated_later(login: Login, cloud: Cloud, clock: Clock) -> None:
    await login.configure(remove_foreign_passwords=True)
    rotations = login.methods.rotations
    await rotations.begin(login.mount)
    clock.advance(SETTLES / SECOND)
    await rotations.run_once()
    cloud.fail(service="graph", path="removePassword", status=500)
    await rotations.run_once()
    assert rotations.state(login.mount).unclean is True
    cloud.heal()
    clock.advance(31)
    await rotations.run_once()
    assert passwords(cloud) == [in_use(login)]


async def rotated(login: Login, clock: Clock) -> None:
    """Rotate the client secret once, up to the deletion of the replaced secret."""
    await login.methods.rotations.begin(login.mount)
    clock.advance(SETTLES / SECOND)
    for _ in range(2):
        await login.methods.rotations.run_once()


async def test_expiry_date_of_a_replaced_secret_is_not_shown(login: Login, clock: Clock) -> None:
    await rotated(login, clock)
    assert "root_password_expiration_date" in shown_config(login)
    await login.configure()
    assert "root_password_expiration_date" not in shown_config(login)


def shown_config(login: Login) -> dict[str, object]:
    return method_config.config_response(
        login.store.read(lambda db: method_config.read(db, login.mount))
    )


@pytest.mark.parametrize("client_ids", [(APPLICATION,), (OTHER_APPLICATION, APPLICATION)])
async def test_failed_rotation_keeps_a_secret_whose_configuration_was_written_again(
    login: Login, cloud: Cloud, clock: Clock, client_ids: tuple[str, ...]
) -> None:
    await rotated(login, clock)
    for client_id in client_ids:
        fields = {"client_id": client_id, "max_retries": 0}
        await login.methods.configure(login.mount, RequestFields(fields))
    cloud.fail(service="graph", path="addPassword", status=403)
    with pytest.raises(Refused):
        await login.methods.rotations.begin(login.mount)
    cloud.heal()
    await login.methods.rotations.run_once()
    assert in_use(login) in passwords(cloud)
    await works(login, cloud)


async def test_configuration_with_the_same_client_keeps_the_rotation(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    await rotated(login, clock)
    await login.methods.rotations.begin(login.mount)
    before = login.methods.rotations.state(login.mount)
    same = {"tenant_id": TENANT, "client_id": APPLICATION, "max_retries": 0}
    await login.methods.configure(login.mount, RequestFields(same))
    assert login.methods.rotations.state(login.mount) == before
    clock.advance(SETTLES / SECOND)
    await login.methods.rotations.run_once()
    assert in_use(login) == passwords(cloud)[-1]


async def test_new_configuration_cancels_a_rotation(
    login: Login, cloud: Cloud, clock: Clock
) -> None:
    await login.methods.rotations.begin(login.mount)
    await login.configure()
    clock.advance(SETTLES / SECOND)
    await login.methods.rotations.run_once()
    assert in_use(login) == OLD


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"path": "applications", "status": 200, "body": {"value": []}}, "no application found"),
        (
            {"path": "addPassword", "status": 403, "body": {"error": {"message": "not you"}}},
            "failed to add new password: not you",
        ),
        ({"path": "addPassword", "status": 200, "body": {}}, "failed to add new password"),
        ({"path": "applications", "close": True}, 'Get "http'),
    ],
)
async def test_refused_directory_request_is_reported_without_changes(
    login: Login, cloud: Cloud, fault: dict[str, object], text: str
) -> None:
    cloud.fail(service="graph", **fault)
    with pytest.raises(Refused) as raised:
        await login.methods.rotations.begin(login.mount)
    assert text in str(raised.value)
    assert in_use(login) == OLD
    assert login.methods.rotations.state(login.mount).pending == ""


async def test_method_without_a_secret_has_no_rotation(login: Login, cloud: Cloud) -> None:
    await login.configure(client_secret="", identity_token_audience="api://exchange")
    with pytest.raises(Refused, match="no client secret, so there is nothing to rotate"):
        await login.methods.rotations.begin(login.mount)


async def test_schedule_and_period_replace_each_other(login: Login, cloud: Cloud) -> None:
    def stored() -> MethodConfig:
        return login.store.read(lambda db: method_config.read(db, login.mount))

    await login.configure(rotation_schedule="0 12 * * *", rotation_window="10m")
    await login.configure(rotation_period="24h")
    assert (stored().rotation_schedule, stored().rotation_window) == ("", 0)
    assert stored().rotation_period == 24 * 3600
    await login.configure(rotation_schedule="0 12 * * *")
    assert (stored().rotation_schedule, stored().rotation_period) == ("0 12 * * *", 0)
    await login.configure(max_retries=1)
    assert stored().rotation_schedule == "0 12 * * *"
    await login.configure(rotation_schedule="")
    assert stored().rotation_schedule == ""


async def test_elapsed_period_starts_a_rotation(login: Login, cloud: Cloud, clock: Clock) -> None:
    await login.configure(rotation_period="24h")
    rotations = login.methods.rotations
    await rotations.run_once()
    clock.advance(23 * 3600)
    await rotations.run_once()
    assert len(passwords(cloud)) == 1
    clock.advance(3600)
    await rotations.run_once()
    assert len(passwords(cloud)) == 2


NOON = 1_795_003_200 * SECOND  # 2026-11-18 12:00 UTC


@pytest.mark.parametrize(
    ("config", "ago", "due"),
    [
        (MethodConfig(), 100 * DAY, False),
        (MethodConfig(rotation_period=3600), 59 * MINUTE, False),
        (MethodConfig(rotation_period=3600), 60 * MINUTE, True),
        (MethodConfig(rotation_period=3600, disable_automated_rotation=True), DAY, False),
        (MethodConfig(rotation_schedule="0 12 * * *"), 23 * HOUR, True),
        (MethodConfig(rotation_schedule="0 13 * * *"), 22 * HOUR, False),
        (MethodConfig(rotation_schedule="0 11 * * *"), 2 * HOUR, True),
        (MethodConfig(rotation_schedule="0 11 * * *", rotation_window=600), 2 * HOUR, False),
        (MethodConfig(rotation_schedule="55 11 * * *", rotation_window=600), 2 * HOUR, True),
    ],
)
def test_a_rotation_is_due_by_period_or_schedule(config: MethodConfig, ago: int, due: bool) -> None:
    assert is_due(config, Rotation(since=NOON - ago), NOON) is due
