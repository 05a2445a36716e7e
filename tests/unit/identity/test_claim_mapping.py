"""Claims as values, and texts that contain such values."""

from typing import Any

import pytest

from daemon.identity.claim_mapping import interpolate, map_claims
from storage.errors import Malformed
from storage.records.auth_method import AuthMethodConfig

CLAIMS: dict[str, Any] = {
    "sub": "repo:acme/web",
    "admin": True,
    "age": 41.9,
    "teams": ["ops", "", 7],
    "team": "solo",
    "deep": {"a/b": ["x", {"name": "y"}]},
}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("sub", "repo:acme/web"),
        ("admin", "true"),
        ("age", "41"),
        ("teams", '["ops","",7]'),
        ("/deep/a~1b/0", "x"),
        ("/deep/a~1b/1/name", "y"),
    ],
)
def test_a_claim_becomes_text(source: str, text: str) -> None:
    config = AuthMethodConfig(claim_mappings={source: "it"})
    assert map_claims(config, CLAIMS).value == {"it": text}


@pytest.mark.parametrize("source", ["nope", "/deep/nope", "/deep/a~1b/9", "/sub/0", "/deep/a~1b/x"])
def test_claim_missing_in_the_token_is_omitted(source: str) -> None:
    config = AuthMethodConfig(claim_mappings={source: "it"}, list_claim_mappings={source: "it"})
    mapped = map_claims(config, CLAIMS)
    assert (mapped.value, mapped.lists) == ({}, {})


@pytest.mark.parametrize(("source", "texts"), [("teams", ["ops", "7"]), ("team", ["solo"])])
def test_list_claim_becomes_nonempty_texts(source: str, texts: list[str]) -> None:
    config = AuthMethodConfig(list_claim_mappings={source: "it"})
    assert map_claims(config, CLAIMS).lists == {"it": texts}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (AuthMethodConfig(claim_mappings={"deep": "it"}), "claim 'deep' is an object"),
        (AuthMethodConfig(list_claim_mappings={"deep": "it"}), '"deep" list claim could not be'),
        (
            AuthMethodConfig(list_claim_mappings={"/deep/a~1b": "it"}),
            '"/deep/a~1b" list claim could not be',
        ),
    ],
)
def test_an_object_is_no_value(config: AuthMethodConfig, text: str) -> None:
    with pytest.raises(Malformed, match=text):
        map_claims(config, CLAIMS)


def test_names_are_interpolated() -> None:
    values = {"value.team": "ops"}
    assert interpolate("${value.team}-${ value.team }-$${x}", values) == "ops-ops-${x}"
    assert interpolate("plain", values) == "plain"


@pytest.mark.parametrize("text", ["${value.other}", "${upper(value.team)}", "${value.team", "${}"])
def test_other_expressions_are_refused(text: str) -> None:
    with pytest.raises(Malformed, match=r"unknown variable accessed: .* \(known: value.team\)"):
        interpolate(text, {"value.team": "ops"})


def test_interpolated_name_has_a_maximum_length() -> None:
    with pytest.raises(Malformed, match="longer than 65536"):
        interpolate("${a}" * 1000, {"a": "x" * 100})
