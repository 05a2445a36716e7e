"""Groups: the policies that they grant, and the end of membership."""

import pytest

from daemon.identity import entities, groups, mounts
from daemon.text.request_fields import RequestFields
from storage.errors import Invalid, Refused, StewardError
from storage.queries import entities as stored_entities
from storage.queries import groups as stored
from storage.queries.pages import ALL
from storage.records.identity import Group
from tests.parts.identity.conftest import PRINCIPAL, Cloud, Login

CLAIM = "11111111-aaaa-4000-8000-000000000001"


async def write(login: Login, new_id: str, before: Group | None = None, **fields: object) -> Group:
    request_fields = RequestFields(fields)
    return await login.store.write(
        lambda tx: groups.write(tx, before, request_fields, new_id=new_id, now=1)
    )


async def external(login: Login) -> None:
    """Create an external group with a policy, for a value of the claim."""
    await write(login, "g", type="external", policies="admin")
    alias = RequestFields(
        {"name": CLAIM, "mount_accessor": login.mount.accessor, "canonical_id": "g"}
    )
    await login.store.write(lambda tx: groups.write_alias(tx, None, alias, new_id="a", now=1))


def policies(login: Login, entity_id: str) -> list[str]:
    return login.store.read(lambda db: groups.identity_policies(db, entity_id))


async def test_policies_of_inner_groups_include_those_of_outer_groups(
    login: Login, cloud: Cloud
) -> None:
    entity = (await login.log_in(cloud.mint())).entity
    await write(login, "g1", policies="one", member_entity_ids=[entity.id])
    await write(login, "g2", policies="two", member_group_ids=["g1"])
    await write(login, "g3", policies="three", member_group_ids=["g2"])
    assert policies(login, entity.id) == ["one", "three", "two"]
    assert (await login.log_in(cloud.mint())).identity_policies == ["one", "three", "two"]


async def test_name_of_another_group_is_refused(login: Login) -> None:
    group = await write(login, "g1", name="admins")
    await write(login, "g2", name="users")
    with pytest.raises(Invalid, match="group name is already in use"):
        await write(login, "g3", name="users")
    with pytest.raises(Invalid, match="group name is already in use"):
        await write(login, "", group, name="users")
    assert (await write(login, "", group, name="admins", policies="one")).policies == ["one"]


@pytest.mark.parametrize("member", ["g1", "g2", "g3"])
async def test_group_cannot_contain_itself(login: Login, member: str) -> None:
    first = await write(login, "g3")
    await write(login, "g2", member_group_ids=["g3"])
    await write(login, "g1", member_group_ids=["g2"])
    with pytest.raises(Refused, match="cyclic relationship"):
        await write(login, "", first, member_group_ids=[member])
    assert login.store.read(lambda db: stored.members(db, "g3", are_groups=True)) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "strange"},
        {"policies": ["root"]},
        {"type": "external", "member_entity_ids": ["x"]},
        {"type": "external", "member_group_ids": ["x"]},
        {"member_entity_ids": ["unknown"]},
        {"member_group_ids": ["unknown"]},
        {"member_entity_ids": [str(number) for number in range(10_001)]},
    ],
)
async def test_invalid_group_is_refused_completely(login: Login, fields: dict[str, object]) -> None:
    with pytest.raises(StewardError):
        await write(login, "g", **fields)
    assert login.store.read(lambda db: stored.list_all(db, ALL)) == []


async def test_group_membership_follows_the_claim(login: Login, cloud: Cloud) -> None:
    await external(login)
    with_claim, without = cloud.mint(claims={"groups": ["x", CLAIM]}), cloud.mint()
    done = await login.log_in(with_claim)
    assert done.identity_policies == ["admin"]
    assert (await login.log_in(without)).identity_policies == []
    assert policies(login, done.entity.id) == []


async def test_removed_alias_ends_its_memberships_immediately(login: Login, cloud: Cloud) -> None:
    await external(login)
    done = await login.log_in(cloud.mint(claims={"groups": [CLAIM]}))
    await login.store.write(lambda tx: stored.remove_alias(tx, "a"))
    assert policies(login, done.entity.id) == []


async def test_removed_mount_deletes_its_memberships(login: Login, cloud: Cloud) -> None:
    await external(login)
    done = await login.log_in(cloud.mint(claims={"groups": [CLAIM]}))
    await mounts.disable(login.store, login.tokens, "cloudid/")
    assert policies(login, done.entity.id) == []
    assert login.store.read(lambda db: stored.aliases(db, ALL)) == []


async def test_removed_group_or_entity_leaves_no_memberships(login: Login, cloud: Cloud) -> None:
    entity = (await login.log_in(cloud.mint())).entity
    await write(login, "g1", member_entity_ids=[entity.id])
    await write(login, "g2", member_group_ids=["g1"])
    await login.store.write(lambda tx: stored.remove(tx, "g1"))
    assert login.store.read(lambda db: stored.members(db, "g2", are_groups=True)) == []
    assert policies(login, entity.id) == []
    await write(login, "g3", member_entity_ids=[entity.id])
    await login.store.write(lambda tx: stored_entities.remove(tx, entity.id))
    assert login.store.read(lambda db: stored.members(db, "g3", are_groups=False)) == []


async def test_login_uses_a_prepared_entity(login: Login, cloud: Cloud) -> None:
    request_fields = RequestFields({"name": "web", "policies": ["reader"]})
    alias = {"name": PRINCIPAL, "mount_accessor": login.mount.accessor, "canonical_id": "e"}
    noted = RequestFields({**alias, "custom_metadata": {"k": "v"}})
    await login.store.write(lambda tx: entities.write(tx, None, request_fields, new_id="e", now=1))
    await login.store.write(lambda tx: entities.write_alias(tx, None, noted, new_id="a", now=1))
    done = await login.log_in(cloud.mint())
    assert (done.entity.id, done.identity_policies) == ("e", ["reader"])
    (kept,) = login.store.read(lambda db: stored_entities.aliases(db, "e"))
    assert kept.custom_metadata == {"k": "v"}


async def test_entity_has_one_alias_per_mount(login: Login) -> None:
    await login.store.write(
        lambda tx: entities.write(tx, None, RequestFields({}), new_id="e", now=1)
    )

    async def name(text: str, new_id: str) -> None:
        alias = {"name": text, "mount_accessor": login.mount.accessor, "canonical_id": "e"}
        await login.store.write(
            lambda tx: entities.write_alias(tx, None, RequestFields(alias), new_id=new_id, now=1)
        )

    await name("one", "a")
    with pytest.raises(Invalid, match="Alias already exists"):
        await name("two", "b")
