"""Signing keys can be replaced at any time."""

from tests.service.daemon import Steward


async def test_new_key_signs_immediately_and_the_old_key_stays_valid(steward: Steward) -> None:
    (first,) = await steward.get("/v1/operator/keyring/keys")
    assert (first["State"], first["Algorithm"]) == ("active", "RS256")
    second = (await steward.post("/v1/operator/keyring/rotate"))["Key"]
    shown = await steward.get("/v1/operator/keyring/keys")
    assert {item["KeyID"]: item["State"] for item in shown} == {
        first["KeyID"]: "inactive",
        second["KeyID"]: "active",
    }
    published = (await steward.get("/.well-known/jwks.json"))["keys"]
    assert {key["kid"] for key in published} == {first["KeyID"], second["KeyID"]}
