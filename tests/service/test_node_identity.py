"""The identity of the daemon's node: its claims, its lifetime, and a new one on request."""

import pytest

from daemon.api.cluster.node_identity import _First, claims_of
from tests.parts.evals.cluster import node
from tests.service.daemon import Steward

PATH = "/v1/client/identity"


async def test_node_shows_its_claims_and_accepts_new_ones(steward: Steward) -> None:
    (line,) = await steward.get("/v1/nodes")
    claims = (await steward.get(PATH))["Claims"]
    assert claims["sub"] == f"node:global:default:{line['ID']}:default"
    assert (claims["nomad_node_id"], claims["nomad_node_datacenter"]) == (line["ID"], "dc1")
    assert claims["exp"] - claims["iat"] == 24 * 3600
    assert "nomad_node_class" not in claims  # the node has no class
    assert await steward.get(f"{PATH}?node_id={line['ID']}") == {"Claims": claims}
    assert await steward.post(f"{PATH}/renew", {"NodeID": line["ID"]}) == {}
    fresh = (await steward.get(PATH))["Claims"]
    assert fresh["jti"] != claims["jti"]
    assert fresh["iat"] >= claims["iat"]
    unchanged = {"aud", "sub", "nomad_node_id", "nomad_node_pool", "nomad_node_datacenter"}
    assert {name: fresh[name] for name in unchanged} == {name: claims[name] for name in unchanged}


async def test_other_nodes_have_no_identity(steward: Steward) -> None:
    for answer in (
        await steward.request("GET", f"{PATH}?node_id=nobody"),
        await steward.request("POST", f"{PATH}/renew", {"NodeID": "nobody"}),
    ):
        assert (answer.status_code, answer.text) == (500, "Unknown node nobody")


@pytest.mark.parametrize("path", [f"{PATH}/renew", "/v1/client/metadata"])
async def test_body_and_query_name_the_same_node(steward: Steward, path: str) -> None:
    (line,) = await steward.get("/v1/nodes")
    for in_body, in_query in ((line["ID"], "nobody"), ("nobody", line["ID"])):
        body = {"NodeID": in_body, "Meta": {"rack": "a"}}
        answer = await steward.request("POST", path, body, node_id=in_query)
        told = f'NodeID = "{in_body}" in the body and node_id = "{in_query}"'
        assert (answer.status_code, told in answer.text) == (400, True), answer.text
    body = {"NodeID": line["ID"], "Meta": {"rack": "a"}}
    answer = await steward.request("POST", path, body, node_id=line["ID"])
    assert answer.status_code == 200


async def test_pool_determines_the_ttl_of_an_identity(steward: Steward) -> None:
    made = {"Name": "short", "NodeIdentityTTL": "90m"}
    assert (await steward.request("POST", "/v1/node/pools", made)).status_code == 200
    await steward.stop()
    steward.flags = (*steward.flags, "--node-pool", "short")
    await steward.start()
    claims = (await steward.get(PATH))["Claims"]
    assert (claims["nomad_node_pool"], claims["exp"] - claims["iat"]) == ("short", 90 * 60)


def test_identity_is_reissued_when_a_third_of_its_ttl_is_left() -> None:
    first = _First("a", 1000)
    at = {now: claims_of(node(), "global", first, 900, now) for now in (1000, 1599, 1600, 2200)}
    assert [item["iat"] for item in at.values()] == [1000, 1000, 1600, 2200]
    assert [item["exp"] for item in at.values()] == [1900, 1900, 2500, 3100]
    assert at[1000]["jti"] == at[1599]["jti"] == "a"
    assert len({str(item["jti"]) for item in at.values()}) == 3
    assert claims_of(node(), "global", first, 1, 5000)["iat"] == 5000
    assert claims_of(node(), "global", first, 900, 10)["iat"] == 1000  # the clock was set back
