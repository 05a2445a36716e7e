"""Profiles of the daemon over HTTP: permissions, kinds of profile and nodes."""

import gzip
from pathlib import Path

from tests.service.daemon import Steward, open_steward

PATH = "/v1/agent/pprof"


async def test_profiles_have_the_pprof_format(steward: Steward) -> None:
    (node,) = await steward.get("/v1/nodes")
    for name in ("profile", "heap", "goroutine"):
        answer = await steward.request("GET", f"{PATH}/{name}?seconds=1&node_id={node['ID']}")
        assert (answer.status_code, answer.headers["content-type"]) == (
            200,
            "application/octet-stream",
        )
        assert b"daemon" in gzip.decompress(answer.content)
    shown = await steward.request("GET", f"{PATH}/goroutine?debug=1&server_id=leader")
    assert shown.text.startswith("goroutine/count\n")
    assert "trio" in shown.text


async def test_unsupported_profile_is_reported(steward: Steward) -> None:
    (node,) = await steward.get("/v1/nodes")
    for query, status, text in (
        ("profile?server_id=other.global", 404, 'server_id = "other.global" is not known'),
        ("heap?node_id=nobody", 404, 'node_id = "nobody" is not known'),
        (f"heap?node_id={node['ID']}&server_id=leader", 400, "Cannot target node and server"),
        ("profile?seconds=301", 400, 'seconds = "301" is not a whole number from 1 to 300'),
        ("trace", 404, 'there is no profile "trace"'),
        ("block", 404, 'there is no profile "block"'),
    ):
        answer = await steward.request("GET", f"{PATH}/{query}")
        assert (answer.status_code, text in answer.text) == (status, True), answer.text


async def test_token_without_agent_write_gets_no_profile(tmp_path: Path) -> None:
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        steward.token = (await steward.post("/v1/acl/bootstrap"))["SecretID"]
        rules = {"Name": "look", "Rules": 'agent { policy = "read" }'}
        await steward.request("POST", "/v1/acl/policy/look", rules)
        token = await steward.post("/v1/acl/token", {"Type": "client", "Policies": ["look"]})
        steward.token = token["SecretID"]
        assert (await steward.request("GET", "/v1/agent/self")).status_code == 200
        for name in ("profile", "heap", "goroutine", "cmdline"):
            answer = await steward.request("GET", f"{PATH}/{name}")
            assert (answer.status_code, answer.text) == (403, "Permission denied"), name
