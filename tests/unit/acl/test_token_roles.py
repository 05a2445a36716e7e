"""Token roles of the Vault API: older names, refused combinations, and the shape of a response."""

from collections.abc import Mapping

import pytest

from daemon.acl.token_roles import change_role, role_response
from daemon.text.request_fields import RequestFields
from storage.errors import Invalid, Malformed
from storage.records.acl import TokenRole

ROLE = TokenRole(name="r")


def changed(fields: Mapping[str, object], role: TokenRole = ROLE) -> TokenRole:
    return change_role(role, RequestFields(fields)).role


def shown(fields: Mapping[str, object]) -> Mapping[str, object]:
    return role_response(changed(fields))


def test_new_role_is_shown_without_the_limits_that_it_lacks() -> None:
    assert role_response(ROLE) == {
        "name": "r",
        "allowed_policies": (),
        "allowed_policies_glob": (),
        "disallowed_policies": (),
        "disallowed_policies_glob": (),
        "allowed_entity_aliases": None,
        "orphan": False,
        "renewable": True,
        "path_suffix": "",
        "token_explicit_max_ttl": 0,
        "token_no_default_policy": False,
        "token_period": 0,
        "token_type": "default-service",
        "period": 0,
        "explicit_max_ttl": 0,
    }


@pytest.mark.parametrize(
    ("older", "name", "value", "stored"),
    [
        ("period", "token_period", "1h", 3600),
        ("explicit_max_ttl", "token_explicit_max_ttl", 90, 90),
        (
            "bound_cidrs",
            "token_bound_cidrs",
            "10.0.0.0/8,192.0.2.1/32",
            ("10.0.0.0/8", "192.0.2.1"),
        ),
    ],
)
def test_older_name_has_the_same_effect_and_is_shown_until_the_new_one_is_written(
    older: str, name: str, value: object, stored: object
) -> None:
    by_older = changed({older: value})
    assert (getattr(by_older, older), getattr(by_older, name)) == (stored, stored)
    by_name = changed({name: value}, by_older)
    assert getattr(by_name, name) == stored
    assert not getattr(by_name, older)
    both = change_role(
        ROLE, RequestFields({older: [] if isinstance(stored, tuple) else 5, name: value})
    )
    assert getattr(both.role, name) == stored
    assert both.warnings == (
        f"Both '{name}' and deprecated '{older}' value supplied, ignoring the deprecated value",
    )


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "non-orphan tokens"),
        ({"orphan": True, "token_period": 5}, "periodic tokens"),
        ({"orphan": True}, "renewable tokens"),
        (
            {"orphan": True, "renewable": False, "explicit_max_ttl": 5},
            "tokens with an explicit max TTL",
        ),
    ],
)
def test_role_of_batch_tokens_has_no_limits_that_nothing_enforces(
    fields: Mapping[str, object], kind: str
) -> None:
    with pytest.raises(Malformed, match=f"'batch' when role is set to generate {kind}$"):
        changed({**fields, "token_type": "batch"})
    valid = {"orphan": True, "renewable": False, "token_type": "batch"}
    assert not changed(valid).renewable


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"token_type": None}, "Invalid 'token_type' value: null"),
        ({"token_type": "odd"}, "invalid 'token_type' value \"odd\""),
        ({"token_num_uses": -1}, "error parsing role fields: 'token_num_uses' cannot be negative"),
        ({"path_suffix": "a"}, r"invalid characters; must match \\w\[\\w-.\]\+\\w"),
        ({"path_suffix": "abc/../x"}, "path cannot contain parent references"),
    ],
)
def test_wrong_value_of_a_role_is_refused(fields: Mapping[str, object], problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        changed(fields)


def test_unlimited_uses_can_be_restored() -> None:
    limited = changed({"token_num_uses": 3})
    assert limited.token_num_uses == 3
    assert changed({"token_num_uses": 0}, limited).token_num_uses == 0


def test_wrong_network_of_a_role_is_refused_by_both_names() -> None:
    for name in ("bound_cidrs", "token_bound_cidrs"):
        with pytest.raises(Invalid, match='error parsing address "x"'):
            changed({name: ["x"]})


def test_policies_of_a_role_are_normalized_and_root_stands_alone() -> None:
    assert changed({"allowed_policies": " B,a,a"}).allowed_policies == ("a", "b")
    assert changed({"allowed_policies": ["a", "ROOT"]}).allowed_policies == ("root",)
    assert changed({"disallowed_policies": ["a", "ROOT"]}).disallowed_policies == ("a", "root")
    assert shown({"token_num_uses": 3, "token_bound_cidrs": "10.0.0.0/8"})["token_num_uses"] == 3


def test_explicit_max_ttl_beyond_that_of_the_system_causes_a_warning() -> None:
    warnings = change_role(ROLE, RequestFields({"token_explicit_max_ttl": "1000h"})).warnings
    assert len(warnings) == 1
    assert "Given explicit max TTL of 3600000 is greater than system/mount" in warnings[0]
    assert not change_role(ROLE, RequestFields({"token_explicit_max_ttl": "768h"})).warnings
