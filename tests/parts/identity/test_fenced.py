"""Fences of the refresh of login methods: an error at one mount affects only that mount."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from daemon.config.settings import Settings
from daemon.fences import ATTEMPTS, Fences
from daemon.identity import client_secret_rotation, directory, federation_refresh, mounts
from daemon.identity.credentials import CloudClient
from daemon.identity.federation import ClientAssertions
from daemon.identity.method_config import federation_token_path
from daemon.identity.methods import LoginMethods
from daemon.text.request_fields import RequestFields
from storage.queries import identity, secrets
from storage.records.base import SECOND
from storage.records.identity import Rotation
from tests.parts.identity.conftest import DAMAGES, PRINCIPAL, Clock, Cloud, Login, damage
from tests.parts.identity.test_credentials import TOKENS
from tests.parts.identity.test_federation_refresh import restarted

AUDIENCE = "api://exchange"


class Broken(Exception):
    """An error that a test raises inside the daemon."""


class Two:
    """Login methods with two mounts: a broken one and an intact one."""

    def __init__(self, good: Login, bad: Login) -> None:
        self.good, self.bad = good, bad
        self.methods: LoginMethods = good.methods

    @property
    def fences(self) -> Fences:
        return self.methods.warm._fences

    def failed(self) -> list[tuple[str, int]]:
        """Return the units that have failed, with the number of their failures."""
        return [(fault.key, fault.failures) for fault in self.fences.faults()]


def at(bad: Login, argument: Callable[[tuple[Any, ...], dict[str, Any]], str], real: Any) -> Any:
    """Return a function like `real` that raises if a call is for the broken mount.

    `argument` returns the mount of a call.
    """

    def called(*args: Any, **named: Any) -> Any:
        if argument(args, named) == bad.mount.accessor:
            raise Broken
        return real(*args, **named)

    return called


def of_mount(args: tuple[Any, ...], _: dict[str, Any]) -> str:
    return str(args[0].accessor)


def of_client(args: tuple[Any, ...], _: dict[str, Any]) -> str:
    client = next(item for item in args if isinstance(item, CloudClient))
    return client.mount.accessor


def of_query(args: tuple[Any, ...], named: dict[str, Any]) -> str:
    return str(named["mount"] if "mount" in named else args[1])


@pytest.fixture
async def two(login: Login, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Two:
    async def vouch(vouching: object, client: CloudClient) -> str:
        return f"a.{client.mount.accessor}.c"

    async def believe(app: object, assertion: str) -> None:
        assert assertion.count(".") == 2

    monkeypatch.setattr(ClientAssertions, "assertion", vouch)  # for methods opened later
    monkeypatch.setattr(login.methods.credentials, "_assertion", partial(vouch, None))
    cloud.fake.check_assertion = believe
    mount = mounts.new_mount("bad/", RequestFields({"type": "cloudid"}), str(uuid4()))
    await mounts.enable(login.store, mount)
    other = Login(login.methods, login.store, login.tokens, mount)
    for item in (other, login):
        await item.configure(client_secret="", identity_token_audience=AUDIENCE)
        await item.role("dev", bound_service_principal_ids=PRINCIPAL)
    return Two(login, other)


def exchanges(cloud: Cloud) -> int:
    return len(cloud.asked("directory", TOKENS))


async def gives_up(two: Two, clock: Clock, round_: Callable[[], Awaitable[object]]) -> None:
    """Check that the broken mount is suspended after some rounds, and the other one never fails."""
    for number in range(1, ATTEMPTS + 1):
        await round_()
        assert two.failed() == [("bad/", number)]
        clock.advance(10)
    await round_()
    assert two.failed() == [("bad/", ATTEMPTS)]


# ---- warm tokens --------------------------------------------------------------------------------


async def test_failed_token_refresh_of_a_mount_does_not_affect_others(
    two: Two, cloud: Cloud, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = two.methods.warm
    with monkeypatch.context() as broken:
        broken.setattr(tokens, "_client_of", at(two.bad, of_mount, tokens._client_of))
        await gives_up(two, clock, tokens.refresh)
    assert exchanges(cloud) == 1
    two.fences.release("warm cloud token", "bad/")
    await tokens.refresh()
    assert two.failed() == []


@pytest.mark.parametrize("module", [identity, secrets])
async def test_unreadable_row_of_a_mount_does_not_affect_others_at_start(
    two: Two,
    cloud: Cloud,
    clock: Clock,
    config: Settings,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
) -> None:
    await two.methods.warm.refresh()
    before = exchanges(cloud)
    if module is identity:
        broken = at(two.bad, of_query, identity.config)
        monkeypatch.setattr(federation_refresh.identity, "config", broken)
    else:
        path, real = federation_token_path(two.bad.mount), secrets.find

        def find(db: Any, path_: Any = None, **named: Any) -> Any:
            if named.get("path", path_) == path:
                raise Broken
            return real(db, path_ or named["path"])

        monkeypatch.setattr(federation_refresh.secrets, "find", find)
    async with restarted(two.good, clock, config) as after:
        client = after.methods.warm._client_of(after.mount)
        assert after.methods.credentials.cached_token(client, client.settings.endpoints.audience)
        failed = [fence.key for fence in after.methods.warm._fences.of_kind("warm cloud token")]
    assert (failed, exchanges(cloud)) == (["bad/"], before)


@pytest.mark.parametrize("left", DAMAGES)
async def test_token_refresh_of_a_damaged_row_does_not_affect_others(
    two: Two, cloud: Cloud, clock: Clock, config: Settings, left: bytes
) -> None:
    damage(two.good.store, "bad/", left)
    await gives_up(two, clock, two.methods.warm.refresh)
    assert exchanges(cloud) == 1
    async with restarted(two.good, clock, config) as after:
        client = after.methods.warm._client_of(after.mount)
        assert after.methods.credentials.cached_token(client, client.settings.endpoints.audience)
        failed = [fence.key for fence in after.methods.warm._fences.of_kind("warm cloud token")]
    assert (failed, exchanges(cloud)) == (["bad/"], 1)


# ---- tokens in use ------------------------------------------------------------------------------


async def test_token_renewal_that_raises_does_not_affect_others(
    two: Two, cloud: Cloud, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two.methods.warm.refresh()
    credentials = two.methods.credentials
    clock.advance(3599 - 500)
    before = exchanges(cloud)
    monkeypatch.setattr(credentials, "granted", at(two.bad, of_client, credentials.granted))
    await gives_up(two, clock, credentials.renew_due)
    assert exchanges(cloud) == before + 1


# ---- directory keys ---------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["find", "fetch"])
async def test_directory_that_raises_does_not_affect_others(
    two: Two,
    cloud: Cloud,
    clock: Clock,
    config: Settings,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    for job in (two.bad, two.good):
        await job.log_in(cloud.mint())
    keys = two.methods._login._directories
    clock.advance(config.cloud_keys_refresh_seconds + 1)
    before = len(cloud.asked("directory", "keys"))
    if step == "find":
        broken = at(two.bad, of_query, directory.directory_cache.find)
        monkeypatch.setattr(directory.directory_cache, "find", broken)
    else:
        monkeypatch.setattr(keys, "_fetched", at(two.bad, of_mount, keys._fetched))
    await gives_up(two, clock, keys.renew_due)
    assert len(cloud.asked("directory", "keys")) == before + 1


# ---- rotations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["config", "step"])
async def test_rotation_that_raises_does_not_affect_others(
    two: Two, cloud: Cloud, clock: Clock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    rotations = two.methods.rotations
    for job in (two.bad, two.good):
        await job.configure(rotation_period="1h", identity_token_audience="")
    await rotations.run_once()
    assert rotations.state(two.good.mount).since
    clock.advance(3601)
    if step == "config":
        broken = at(two.bad, of_query, identity.config)
        monkeypatch.setattr(client_secret_rotation.identity, "config", broken)
    else:
        monkeypatch.setattr(rotations, "_step", at(two.bad, of_mount, rotations._step))
    await gives_up(two, clock, rotations.run_once)
    monkeypatch.undo()
    assert rotations.state(two.good.mount).pending
    assert rotations.state(two.bad.mount) == Rotation(since=rotations.state(two.bad.mount).since)
    assert rotations.state(two.bad.mount).since < clock.now() - 3600 * SECOND


@pytest.mark.parametrize("left", DAMAGES)
async def test_rotation_of_a_damaged_row_does_not_affect_others(
    two: Two, clock: Clock, left: bytes
) -> None:
    rotations = two.methods.rotations
    for job in (two.bad, two.good):
        await job.configure(rotation_period="1h", identity_token_audience="")
    await rotations.run_once()
    clock.advance(3601)
    damage(two.good.store, "bad/", left)
    await gives_up(two, clock, rotations.run_once)
    assert rotations.state(two.good.mount).pending
    assert not rotations.state(two.bad.mount).pending
