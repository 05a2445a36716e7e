"""Mounts: moving one keeps what is set up and ends what it issued."""

import pytest

from daemon.identity import mounts
from daemon.text.request_fields import RequestFields
from storage.errors import Invalid, UnknownToken
from storage.queries import identity
from storage.queries import mounts as stored
from tests.parts.identity.conftest import Cloud, Login


async def move(login: Login, source: str, target: str) -> None:
    await mounts.move(login.store, login.tokens, source, target, "id")


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
        ("auth/cloudid/", "auth/", "a mount needs a path of 1 to 256 characters"),
        ("auth/cloudid/", f"auth/{'x' * 300}/", "a mount needs a path of 1 to 256 characters"),
    ],
)
async def test_move_that_cannot_be_made_changes_nothing(
    login: Login, source: str, target: str, text: str
) -> None:
    other = mounts.new_mount("other/", RequestFields({"type": "cloudid"}), "00000000-other")
    await mounts.enable(login.store, other)
    before = login.store.read(stored.list_all)
    with pytest.raises(Invalid) as raised:
        await move(login, source, target)
    assert text in str(raised.value)
    assert login.store.read(stored.list_all) == before


async def test_mount_moves_below_its_own_path(login: Login) -> None:
    await move(login, "auth/cloudid/", "auth/cloudid/deeper/")
    assert login.store.read(mounts.paths) == ["cloudid/deeper/"]


@pytest.mark.parametrize("network", ["zz", "1.2.3", "300.1.1.1/8", "10.0.0.0/33", "example.org"])
async def test_role_with_a_bad_network_is_refused_and_unchanged(login: Login, network: str) -> None:
    await login.role("dev", token_bound_cidrs=["10.0.0.0/8"])
    with pytest.raises(Invalid, match="error parsing address"):
        await login.role("dev", token_bound_cidrs=["10.0.0.0/8", network])
    role = login.store.read(lambda db: identity.role(db, login.mount.accessor, "dev"))
    assert role is not None
    assert role.token_bound_cidrs == ["10.0.0.0/8"]


async def test_clock_leeway_is_bounded(login: Login) -> None:
    await login.configure(clock_leeway=600)
    with pytest.raises(Invalid, match="clock_leeway of 601 seconds"):
        await login.configure(clock_leeway=601)
