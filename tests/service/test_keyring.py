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


async def test_key_with_a_publish_time_signs_later(steward: Steward) -> None:
    (first,) = await steward.get("/v1/operator/keyring/keys")
    path, day = "/v1/operator/keyring/rotate", 86_400 * 10**9
    later = first["CreateTime"] + 5 * day
    second = (await steward.request("POST", path, publish_time=str(later))).json()["Key"]
    assert (second["State"], second["PublishTime"]) == ("prepublished", later)
    shown = await steward.get("/v1/operator/keyring/keys")
    assert {item["KeyID"]: item["State"] for item in shown} == {
        first["KeyID"]: "active",
        second["KeyID"]: "prepublished",
    }
    third = (await steward.request("POST", path, publish_time=str(first["CreateTime"]))).json()
    assert third["Key"]["State"] == "active"


async def test_wrong_publish_time_creates_no_key(steward: Steward) -> None:
    for query, status, error in (
        ({"publish_time": "x"}, 500, 'strconv.ParseInt: parsing "x": invalid syntax'),
        ({"publish_time": "9" * 20}, 500, "value out of range"),
        ({"publish_time": str(2**63 - 1)}, 400, "is more than 30 days ahead"),
        ({"publish_time": "1", "full": ""}, 500, "cannot be prepublished and full rotated"),
    ):
        answer = await steward.request("POST", "/v1/operator/keyring/rotate", **query)
        assert answer.status_code == status
        assert error in answer.text
    assert len(await steward.get("/v1/operator/keyring/keys")) == 1
