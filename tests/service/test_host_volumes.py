"""Host volumes created over the API, as used by jobs and by Nomad's clients."""

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from daemon.config.data_directory import volumes_dir
from tests.service.daemon import Steward, open_steward
from tests.time_limits import HAPPENS_WITHIN

CREATE, REGISTER = "/v1/volume/host/create", "/v1/volume/host/register"
SECRET = "7a3c2f1e-5d4b-4c6a-9e8f-0123456789ab"  # noqa: S105  # of a test
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="exec needs root")


async def create(steward: Steward, name: str, /, **fields: object) -> dict[str, Any]:
    made = await steward.post(CREATE, {"Volume": {"Name": name, **fields}})
    volume: dict[str, Any] = made["Volume"]
    return volume


async def register(steward: Steward, name: str, path: object, **query: object) -> Any:
    (node,) = await steward.get("/v1/nodes")
    volume = {"Name": name, "NodeID": node["ID"], "HostPath": str(path)}
    return await steward.request("POST", REGISTER, {"Volume": volume}, **query)


def mode_of(path: str) -> str:
    return oct(Path(path).stat().st_mode)[-3:]


def names_in(directory: Path) -> list[str]:
    return os.listdir(directory) if directory.exists() else []


def user_of(volume: str, **of_volume: object) -> dict[str, object]:
    """Return a job that writes to a volume, and keeps running."""
    task = {
        "Name": "t",
        "Driver": "exec",
        "Config": {
            "command": "/bin/sh",
            "args": ["-c", "echo kept > /data/file; echo done; sleep 600"],
        },
        "VolumeMounts": [{"Volume": "v", "Destination": "/data"}],
    }
    wanted = {"Name": "v", "Type": "host", "Source": volume, **of_volume}
    group = {"Name": "g", "Volumes": {"v": wanted}, "Tasks": [task]}
    return {"ID": "user", "Type": "service", "Datacenters": ["*"], "TaskGroups": [group]}


async def printed(steward: Steward, alloc_id: str, text: str) -> None:
    """Wait until a task has printed this text."""
    with trio.fail_after(HAPPENS_WITHIN):
        while text not in await steward.log_of(alloc_id, "t"):
            pass


@needs_root
async def test_job_waits_for_its_volume_and_prevents_its_deletion(steward: Steward) -> None:
    await steward.register(user_of("photos"))
    await steward.until(
        "/v1/job/user/evaluations",
        lambda shown: "blocked" in {item["Status"] for item in shown},
    )
    volume = await create(steward, "photos", Parameters={"mode": "0777"})
    directory = volumes_dir(steward.data_dir) / volume["ID"]
    assert volume["HostPath"] == str(directory)
    (allocation,) = await steward.allocations("user", "running")
    await printed(steward, allocation["ID"], "done")
    path = f"/v1/volume/host/{volume['ID']}"
    refused = await steward.request("DELETE", path)
    assert (refused.status_code, allocation["ID"] in refused.text) == (500, True)
    await steward.restart()
    (node,) = await steward.get("/v1/nodes")
    shown = await steward.get(f"/v1/node/{node['ID']}")
    assert shown["HostVolumes"]["photos"]["ID"] == volume["ID"]
    await steward.delete("/v1/job/user")
    await steward.allocations("user", "complete", "failed")
    assert (directory / "file").read_text() == "kept\n"
    await steward.delete(path)
    assert not directory.exists()
    assert (await steward.request("GET", path)).status_code == 404
    assert await steward.get("/v1/volumes", type="host") == []


async def test_a_volume_is_listed_found_and_changed(steward: Steward) -> None:
    volume = await create(steward, "photos")
    (stub,) = await steward.get("/v1/volumes", type="host", prefix="pho")
    assert (stub["ID"], stub["State"], stub["PluginID"]) == (volume["ID"], "ready", "mkdir")
    assert await steward.get("/v1/volumes") == []
    found = await steward.post(
        "/v1/search", {"Prefix": volume["ID"][:6], "Context": "host_volumes"}
    )
    assert found["Matches"] == {"host_volumes": [volume["ID"]]}
    changed = await create(
        steward, "photos", ID=volume["ID"], Parameters={"mode": "0711"}, RequestedCapacityMaxBytes=9
    )
    assert changed["CreateIndex"] == volume["CreateIndex"] < changed["ModifyIndex"]
    assert mode_of(volume["HostPath"]) == "711"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"Name": ""}, "Name must have 1 to 128 characters"),
        ({"PluginID": "rbd"}, 'only the plug-in "mkdir" is supported'),
        ({"NodePool": "other"}, 'no host is in node pool "other"'),
        ({"NodeID": "elsewhere"}, "no node has the ID"),
        ({"Namespace": "none"}, 'nonexistent namespace "none"'),
        ({"ID": "unknown"}, "no volume has the ID"),
        ({"Parameters": {"mode": "4777"}}, "mode: write an octal number"),
        ({"Parameters": {"mode": "x"}}, "mode: write an octal number from 0000 to 0777"),
        ({"Parameters": {"mode": "9999"}}, "mode: write an octal number from 0000 to 0777"),
        ({"Parameters": {"mode": "\u0667"}}, "mode: write an octal number from 0000 to 0777"),
        ({"Parameters": {"uid": "-2"}}, "uid and gid"),
        (
            {"Parameters": {"gid": "staff"}},
            "uid and gid: write the numeric IDs of a user and a group",
        ),
        ({"RequestedCapacityMinBytes": 2}, "must not be less than"),
        ({"RequestedCapabilities": [{"AccessMode": "x"}]}, "AccessMode 'x'"),
        (
            {"Constraints": [{"LTarget": "${attr.kernel.name}", "RTarget": "os2", "Operand": "="}]},
            "does not meet the constraint",
        ),
        ({"Constraints": [{"Operand": "distinct_hosts"}]}, "a volume is on one node"),
    ],
)
async def test_invalid_volume_is_refused_and_leaves_nothing(
    steward: Steward, fields: dict[str, object], words: str
) -> None:
    answer = await steward.request("POST", CREATE, {"Volume": {"Name": "photos", **fields}})
    assert answer.status_code in (400, 404)
    assert words in answer.text
    assert names_in(volumes_dir(steward.data_dir)) == []
    assert await steward.get("/v1/volumes", type="host") == []


async def test_setting_without_effect_is_reported(steward: Steward) -> None:
    asked = {"Name": "a", "RequestedCapacityMaxBytes": 5, "Parameters": {"quota": "1"}}
    answer = await steward.post(CREATE, {"Volume": {**asked, "Color": "red"}})
    for words in ("limits no sizes", 'unknown parameter "quota"', 'unknown field "Volume.Color"'):
        assert words in answer["Warnings"]


async def test_registered_directory_remains_after_the_deletion_of_its_volume(
    steward: Steward, tmp_path: Path
) -> None:
    own = tmp_path / "photos"
    own.mkdir()
    (own / "file").write_text("mine")
    made = (await register(steward, "photos", own)).json()["Volume"]
    assert (made["HostPath"], made["State"]) == (str(own), "ready")
    below = own / "below"
    below.mkdir()
    assert "overlaps with" in (await register(steward, "b", below)).text
    link = tmp_path / "link"
    link.symlink_to(own)
    assert "it contains a symbolic link" in (await register(steward, "b", link)).text
    assert "not a directory" in (await register(steward, "b", tmp_path / "none")).text
    assert "absolute path" in (await register(steward, "b", "photos")).text
    await steward.delete(f"/v1/volume/host/{made['ID']}")
    assert (own / "file").read_text() == "mine"


async def test_only_configured_directories_can_be_registered(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    (allowed / "inner").mkdir(parents=True)
    other.mkdir()
    config = tmp_path / "steward.toml"
    config.write_text(f'host_volume_paths = ["{allowed}"]\n')
    async with open_steward(tmp_path, "--dev", "--config", str(config)) as steward:
        assert (await register(steward, "a", allowed / "inner")).status_code == 200
        answer = await register(steward, "b", other)
        assert (answer.status_code, "host_volume_paths" in answer.text) == (400, True)


async def test_permissions_are_those_of_the_namespace(tmp_path: Path) -> None:
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        steward.token = SECRET
        volume = await create(steward, "photos")
        rules = 'namespace "default" { capabilities = ["host-volume-read"] }'
        await steward.request("POST", "/v1/acl/policy/r", {"Name": "r", "Rules": rules})
        made = await steward.post("/v1/acl/token", {"Type": "client", "Policies": ["r"]})
        steward.token = made["SecretID"]
        path = f"/v1/volume/host/{volume['ID']}"
        assert (await steward.get(path))["Name"] == "photos"
        assert len(await steward.get("/v1/volumes", type="host", namespace="*")) == 1
        other = {"Volume": {"Name": "other"}}
        assert (await steward.request("POST", CREATE, other)).status_code == 403
        assert (await steward.request("POST", REGISTER, other)).status_code == 403
        assert (await steward.request("DELETE", path)).status_code == 403
        steward.token = ""
        assert (await steward.request("GET", path)).status_code == 403
