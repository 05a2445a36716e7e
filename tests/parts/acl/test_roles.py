"""Roles of the jobs API: their rules, and their names in requests for tokens."""

from typing import Any

import msgspec
import pytest

from daemon.acl.nomad_tokens import TokenRequest, new_token
from daemon.acl.policy_store import check_role
from storage.errors import Malformed
from storage.queries import policies
from storage.records.acl import AclRole, Policy, PolicyLink, RoleLink
from storage.store import Store
from tests.samples import NOW

STAFF = AclRole(id="1", name="staff", description="x" * 256, policies=[PolicyLink(name="reader")])


@pytest.fixture
async def roles(store: Store) -> Store:
    await store.write(lambda tx: policies.put(tx, Policy(name="reader")))
    await store.write(lambda tx: policies.put_role(tx, STAFF))
    return store


async def test_role_may_be_stored_again_under_its_own_name(roles: Store) -> None:
    checked = roles.read(lambda db: check_role(db, STAFF))
    assert checked.hash != ""
    assert msgspec.structs.replace(checked, hash="") == STAFF


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({"name": "no spaces"}, ["invalid name 'no spaces'"]),
        ({"description": "x" * 257}, ["description longer than 256"]),
        ({"policies": None}, ["at least one policy should be specified"]),
        ({"policies": [PolicyLink(name="missing")]}, ["cannot find policy missing"]),
        ({"id": "2"}, ["role with name staff already exists"]),
        (
            {"id": "2", "description": "x" * 257},
            ["description longer than 256", "role with name staff already exists"],
        ),
    ],
)
async def test_role_that_breaks_a_rule_is_refused_with_each_error(
    roles: Store, changes: dict[str, Any], problems: list[str]
) -> None:
    role = msgspec.structs.replace(STAFF, **changes)
    with pytest.raises(Malformed) as caught:
        roles.read(lambda db: check_role(db, role))
    assert [line[3:] for line in str(caught.value).splitlines() if "* " in line] == problems


@pytest.mark.parametrize("link", [RoleLink(id="1"), RoleLink(name="staff")])
async def test_token_request_names_a_role_by_id_or_name(roles: Store, link: RoleLink) -> None:
    request = TokenRequest(type="client", roles=[link, link])
    made = roles.read(lambda db: new_token(db, request, accessor="a", now=NOW))
    assert made.roles == ("1",)


@pytest.mark.parametrize("link", [RoleLink(id="staff"), RoleLink(name="1"), RoleLink(name="other")])
async def test_unknown_role_in_a_token_request_is_refused(roles: Store, link: RoleLink) -> None:
    request = TokenRequest(type="client", roles=[link])
    with pytest.raises(Malformed, match=f"cannot find role {link.id or link.name}"):
        roles.read(lambda db: new_token(db, request, accessor="a", now=NOW))
