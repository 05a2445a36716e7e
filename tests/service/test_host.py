"""Information about the daemon's host over HTTP."""

import os
from pathlib import Path

import pytest

from tests.service.daemon import Steward, open_steward

PATH = "/v1/agent/host"
HOSTS = Path("/etc/hosts").read_text()


async def test_host_is_shown_in_the_form_of_nomad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://a:secret@db")
    monkeypatch.setenv("http_proxy", "http://a:secret@proxy.invalid")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("LANG", "C.UTF-8")
    async with open_steward(tmp_path, "--dev") as steward:
        (node,) = await steward.get("/v1/nodes")
        answer = await steward.request("GET", PATH, node_id=node["ID"])
        found = answer.json()["HostData"]
        assert answer.json()["AgentID"] == node["ID"]
        assert set(found) == {"OS", "Network", "ResolvConf", "Hosts", "Environment", "Disk"}
        assert found["OS"].startswith("Linux ")
        assert "lo" in [interface["name"] for interface in found["Network"]]
        assert found["Hosts"] == HOSTS
        assert found["Environment"]["LANG"] == os.environ["LANG"]
        assert found["Environment"]["DATABASE_URL"] == "<redacted>"
        assert "secret" not in answer.text
        (member,) = (await steward.get("/v1/agent/members"))["Members"]
        assert (await steward.get(PATH))["AgentID"] == member["Name"]


async def test_unknown_agent_is_reported(steward: Steward) -> None:
    for query, status, text in (
        ("server_id=other.global", 404, 'server_id = "other.global" is not known'),
        ("node_id=nobody", 404, 'node_id = "nobody" is not known'),
        ("node_id=a&server_id=leader", 400, "Cannot target node and server"),
    ):
        answer = await steward.request("GET", f"{PATH}?{query}")
        assert (answer.status_code, text in answer.text) == (status, True), answer.text


async def test_host_needs_the_right_to_read_agents(tmp_path: Path) -> None:
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        management = (await steward.post("/v1/acl/bootstrap"))["SecretID"]
        for name, status in (("agent", 200), ("node", 403)):
            steward.token = management
            rules = {"Name": name, "Rules": f'{name} {{ policy = "read" }}'}
            await steward.request("POST", f"/v1/acl/policy/{name}", rules)
            token = await steward.post("/v1/acl/token", {"Type": "client", "Policies": [name]})
            steward.token = token["SecretID"]
            assert (await steward.request("GET", PATH)).status_code == status
