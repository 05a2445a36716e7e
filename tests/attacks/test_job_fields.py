"""The author of a job puts hostile values into fields that become a path, a name or a user.

The daemon runs as root and requires tokens. The author may submit jobs and read their output, and
nothing else.
"""

import copy
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.service.daemon import Steward, open_steward

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the daemon of this test runs as root")
SECRET = "only root reads this"  # noqa: S105  # of a test
RULES = """
namespace "default" { capabilities = ["submit-job", "read-job", "read-logs"] }
host_volume "data" { policy = "write" }
"""
AT_ONCE = 8  # concurrent requests
# `VICTIM` stands for the path of root's file.
VALUES = [
    *("VICTIM", "../../../../../../VICTIM", "a\n* * * * * root id", "a\0b", "x" * 5000, "0"),
    "${NOMAD_ALLOC_DIR}/../.claim.main.0",
]
MOUNT = {"Volume": "data", "Destination": "/data"}
CHECK = {"Name": "c", "Type": "http", "Path": "/", "Interval": 10**9, "Timeout": 10**9}
SCRIPT_CHECK = CHECK | {"Type": "script", "Command": "/bin/true", "TaskName": "main"}
SERVICE = {"Name": "web", "Provider": "nomad", "PortLabel": "p"}
TEMPLATE = {"EmbeddedTmpl": "text", "DestPath": "local/file", "ChangeMode": "noop"}
ARTIFACT = {"GetterSource": "git::https://127.0.0.1:9/x.git"}
OTHER_IDENTITY = {"Name": "other", "Audience": ["a"], "File": True}
# Parts of a job by name, each with its definition and the fields to attack. There is a table for
# the parts of a task, of its group, and of the job.
OF_TASK: dict[str, tuple[dict[str, Any], list[str]]] = {
    "plain": ({}, ["User", "Name", "KillSignal", "Kind", "Config.work_dir", "Config.command"]),
    "values": ({"Env": {}, "Meta": {}}, ["Env.X", "Env.*", "Meta.x", "Meta.*"]),
    "payload": ({"DispatchPayload": {}}, ["DispatchPayload.File"]),
    "template": (
        {"Templates": [TEMPLATE]},
        [f"Templates.0.{field}" for field in ("DestPath", "SourcePath", "Perms", "ChangeSignal")],
    ),
    "artifact": (
        {"Artifacts": [ARTIFACT | {"GetterOptions": {}, "GetterHeaders": {}}]},
        [
            *(f"Artifacts.0.{field}" for field in ("RelativeDest", "GetterSource", "GetterMode")),
            *(f"Artifacts.0.GetterOptions.{option}" for option in ("filename", "sshkey", "ref")),
            *(f"Artifacts.0.GetterOptions.{option}" for option in ("checksum", "archive")),
            "Artifacts.0.GetterHeaders.*",
        ],
    ),
    "mount": (
        {"VolumeMounts": [MOUNT]},
        [f"VolumeMounts.0.{field}" for field in ("Destination", "Volume", "PropagationMode")],
    ),
    "identity": (
        {"Identity": {"File": True}, "Identities": [OTHER_IDENTITY]},
        ["Identity.Filepath", "Identities.0.Filepath", "Identities.0.Name"],
    ),
    "service": (
        {"Services": [SERVICE | {"Checks": [CHECK | {"Header": {}}]}]},
        [
            *("Services.0.Name", "Services.0.Address", "Services.0.PortLabel"),
            *(f"Services.0.Checks.0.{one}" for one in ("Path", "Method", "Protocol", "Body")),
            *("Services.0.Checks.0.TLSServerName", "Services.0.Checks.0.Header.*"),
        ],
    ),
    "script": (
        {"Services": [SERVICE | {"Checks": [SCRIPT_CHECK]}]},
        ["Services.0.Checks.0.Command", "Services.0.Checks.0.TaskName"],
    ),
}
NETWORK = {"DNS": {"Servers": ["1.1.1.1"], "Searches": ["a"], "Options": ["b"]}}
OF_GROUP: dict[str, tuple[dict[str, Any], list[str]]] = {
    "plain": ({}, ["Name"]),
    "volume": (
        {"Volumes": {"data": {"Type": "host", "Source": "data"}}},
        ["Volumes.data.Source", "Volumes.data.Name"],
    ),
    "name servers": (
        {"Networks": [NETWORK]},
        [f"Networks.0.DNS.{field}.0" for field in ("Servers", "Searches", "Options")],
    ),
    "network": (
        {"Networks": [{"DynamicPorts": [{"Label": "p"}]}]},
        [
            *(f"Networks.0.{field}" for field in ("Mode", "Hostname", "Device")),
            *("Networks.0.DynamicPorts.0.Label", "Networks.0.DynamicPorts.0.HostNetwork"),
        ],
    ),
}
OF_JOB: dict[str, tuple[dict[str, Any], list[str]]] = {
    "plain": ({"Meta": {}}, ["ID", "Name", "Meta.steward_keep"])
}
PARTS = [("task", part) for part in OF_TASK]
PARTS += [("group", part) for part in OF_GROUP] + [("job", part) for part in OF_JOB]


def job(number: int, driver: str, victim: Path) -> dict[str, Any]:
    """Return a job whose task prints its user, and the content of the victim's file if the task can
    read it.
    """
    words = f"id -u; cat {victim}; exit 0"
    task = {
        "Name": "main",
        "Driver": driver,
        "Config": {"command": "/bin/sh", "args": ["-c", words]},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
        "Resources": {"CPU": 1, "MemoryMB": 10},
    }
    group = {
        "Name": "g",
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        "EphemeralDisk": {"SizeMB": 10},
        "Networks": [{"DynamicPorts": [{"Label": "p"}]}],
        "Volumes": {"data": {"Name": "data", "Type": "host", "Source": "data"}},
        "Tasks": [task],
    }
    return {"ID": f"j{number}", "Type": "batch", "Datacenters": ["*"], "TaskGroups": [group]}


def put(tree: Any, path: str, value: str) -> None:
    """Set the field at a path to a value; a final `*` is a name that the author chooses."""
    *above, last = (int(word) if word.isdecimal() else word for word in path.split("."))
    for word in above:
        tree = tree[word]
    if last == "*":
        tree[value] = ["x"] if path.endswith("Header.*") else "x"
    else:
        tree[last] = value


def hostile(scope: str, part: str, victim: Path) -> Iterator[dict[str, Any]]:
    """Yield a job for each field of a part of a scope, each hostile value and each driver."""
    given, fields = {"task": OF_TASK, "group": OF_GROUP, "job": OF_JOB}[scope][part]
    cases = itertools.product(fields, VALUES, ("exec", "raw_exec"))
    for number, (field, value, driver) in enumerate(cases):
        made = job(number, driver, victim)
        group = made["TaskGroups"][0]
        target = {"task": group["Tasks"][0], "group": group, "job": made}[scope]
        target |= copy.deepcopy(given)
        name = str(victim).lstrip("/") if value.startswith("..") else str(victim)
        put(target, field, value.replace("VICTIM", name))
        yield made


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a file that only root can read, in a directory that only root can read."""
    tmp_path.chmod(0o755)
    folder = tmp_path / "victim"
    folder.mkdir(mode=0o700)
    file = folder / "file"
    file.touch(mode=0o600)
    file.write_text(SECRET)
    return file


def is_secret(victim: Path) -> bool:
    """Return whether a victim's file is unchanged."""
    return (victim.read_text(), victim.stat().st_mode & 0o777) == (SECRET, 0o600)


@pytest.fixture
async def steward(tmp_path: Path, victim: Path) -> AsyncIterator[Steward]:
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    settings = tmp_path / "steward.toml"
    settings.write_text(f'raw_exec = true\n[[host_volumes]]\nname = "data"\npath = "{volume}"\n')
    async with open_steward(tmp_path, "--config", str(settings)) as running:
        await running.request("POST", "/v1/acl/policy/p", {"Name": "p", "Rules": RULES})
        token = await running.post("/v1/acl/token", {"Type": "client", "Policies": ["p"]})
        running.token = token["SecretID"]
        yield running


async def submit(steward: Steward, jobs: Iterator[dict[str, Any]]) -> list[int]:
    """Register jobs; return the statuses."""
    limit, found = trio.CapacityLimiter(AT_ONCE), list[int]()

    async def one(item: dict[str, Any]) -> None:
        async with limit:
            found.append((await steward.request("POST", "/v1/jobs", {"Job": item})).status_code)

    async with trio.open_nursery() as nursery:
        for item in jobs:
            nursery.start_soon(one, item)
    return found


@pytest.mark.parametrize(("scope", "part"), PARTS)
async def test_no_field_of_a_job_gives_access_outside_the_job(
    steward: Steward, victim: Path, tmp_path: Path, scope: str, part: str
) -> None:
    before = sorted(os.listdir(tmp_path))
    statuses = await submit(steward, hostile(scope, part, victim))
    ended = ("complete", "failed")
    await steward.until(
        "/v1/allocations", lambda shown: all(one["ClientStatus"] in ended for one in shown)
    )
    await steward.until(
        "/v1/evaluations", lambda shown: all(one["Status"] != "pending" for one in shown)
    )
    assert 200 in statuses
    assert set(statuses) <= {200, 400, 403, 500}  # Nomad answers invalid jobs with 500
    said = steward.log.read_text()
    assert "Traceback" not in said
    outputs = [file.read_text(errors="replace") for file in steward.data_dir.rglob("*.stdout.*")]
    assert not [text for text in outputs if SECRET in text or text.startswith("0\n")]
    assert is_secret(victim)
    assert os.listdir(victim.parent) == [victim.name]
    assert sorted(os.listdir(tmp_path)) == before
