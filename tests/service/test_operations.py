"""Operator tasks: inspect the daemon, drain its node, make it ineligible, collect garbage."""

import base64
import hashlib
import io
import json
import os
import signal
import tarfile
from pathlib import Path

import pytest

from daemon.config.data_directory import store_dir
from tests.service.daemon import Steward, open_steward
from tests.service.streaming import open_stream


def sleeping(job_id: str = "web", count: int = 1) -> dict[str, object]:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["60"]},
        "KillTimeout": 1_000_000_000,
        "Resources": {"CPU": 20, "MemoryMB": 20},
    }
    return {"ID": job_id, "TaskGroups": [{"Name": "web", "Count": count, "Tasks": [task]}]}


async def node_of(steward: Steward) -> str:
    (node,) = await steward.get("/v1/nodes")
    return str(node["ID"])


async def test_drained_node_becomes_empty_and_runs_allocations_again_when_eligible(
    steward: Steward,
) -> None:
    await steward.run_job(sleeping())
    node = await node_of(steward)
    await steward.post(f"/v1/node/{node}/drain", {"DrainSpec": {"Deadline": 0}})
    done = await steward.until(f"/v1/node/{node}", lambda shown: not shown["Drain"])
    assert (done["LastDrain"]["Status"], done["SchedulingEligibility"]) == (
        "complete",
        "ineligible",
    )
    await steward.allocations("web", "complete")
    await steward.post(f"/v1/node/{node}/eligibility", {"Eligibility": "eligible"})
    await steward.allocations("web", "complete", "running")
    await steward.until(
        "/v1/job/web/allocations",
        lambda shown: "running" in {alloc["ClientStatus"] for alloc in shown},
    )


async def test_ineligible_node_stays_ineligible_after_a_restart(steward: Steward) -> None:
    node = await node_of(steward)
    await steward.post(f"/v1/node/{node}/eligibility", {"Eligibility": "ineligible"})
    await steward.restart()
    shown = await steward.get(f"/v1/node/{node}")
    assert shown["SchedulingEligibility"] == "ineligible"


async def test_dead_job_is_deleted_by_garbage_collection_on_request(steward: Steward) -> None:
    await steward.register(sleeping(count=0))
    await steward.until("/v1/job/web", lambda shown: shown["Status"] == "dead")
    answer = await steward.request("PUT", "/v1/system/gc")
    assert (answer.status_code, answer.content) == (200, b"")
    assert await steward.get("/v1/jobs") == []


@pytest.mark.parametrize("plain", [True, False])
async def test_daemon_log_is_streamed(steward: Steward, plain: bool) -> None:
    query = {"log_json": "true", "plain": str(plain).lower()}
    async with open_stream(steward, "/v1/agent/monitor", **query) as answer:
        text = b"" if plain else await answer.piece()
        os.kill(steward.pid, signal.SIGHUP)  # makes the daemon log a line
        text += await answer.piece()
    shown = text if plain else base64.b64decode(json.loads(text.removeprefix(b"{}"))["Data"])
    assert "certificate" in json.loads(shown)["message"]


async def test_invalid_log_levels_are_named(steward: Steward) -> None:
    answer = await steward.request("GET", "/v1/agent/monitor", log_level="loud")
    assert (answer.status_code, answer.text) == (
        400,
        "Unknown log level: loud, must be one of trace, debug, info, warn, error",
    )


async def test_submissions_can_be_restricted_to_management_tokens(tmp_path: Path) -> None:
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        manager = (await steward.post("/v1/acl/bootstrap"))["SecretID"]
        steward.token = manager
        config = {"RejectJobRegistration": True}
        done = await steward.post("/v1/operator/scheduler/configuration", config)
        assert done["Updated"]
        rules = {"Name": "all", "Rules": 'namespace "*" { policy = "write" }'}
        await steward.request("POST", "/v1/acl/policy/all", rules)
        token = await steward.post("/v1/acl/token", {"Type": "client", "Policies": ["all"]})
        await steward.register(sleeping(count=0))
        steward.token = token["SecretID"]
        answer = await steward.request("POST", "/v1/jobs", {"Job": sleeping("other", count=0)})
        assert answer.status_code == 403
        assert answer.text.startswith("job registration, dispatch, and scale are disabled")


async def test_uploaded_snapshot_can_be_restored(steward: Steward) -> None:
    await steward.register(sleeping("kept", count=0))
    answer = await steward.request("GET", "/v1/operator/snapshot")
    digest = base64.b64encode(hashlib.sha256(answer.content).digest()).decode()
    assert answer.headers["Digest"] == f"sha-256={digest}"
    file = steward.directory / "sent.snap"
    file.write_bytes(answer.content)
    assert not list((store_dir(steward.data_dir) / ".unfinished").iterdir())
    await steward.register(sleeping("later", count=0))
    drilled = await steward.cli("operator", "snapshot", "drill", str(file))
    assert b"can be restored" in drilled.stdout, drilled.stderr
    await steward.stop()
    done = await steward.cli(
        *("operator", "snapshot", "restore", str(file), "--data-dir", str(steward.data_dir))
    )
    assert done.returncode == 0, done.stderr
    await steward.start()
    assert [item["ID"] for item in await steward.get("/v1/jobs")] == ["kept"]


@pytest.mark.parametrize("operation", ["inspect", "drill", "restore"])
async def test_error_about_a_snapshot_names_the_given_file(
    steward: Steward, tmp_path: Path, operation: str
) -> None:
    empty, archive = tmp_path / "empty.snap", tmp_path / "archive.snap"
    empty.touch()
    answer = await steward.request("GET", "/v1/operator/snapshot")
    archive.write_bytes(repacked(answer.content, b"no database at all"))
    await steward.stop()
    for file in (empty, archive):
        done = await steward.cli(
            *("operator", "snapshot", operation, str(file)),
            *(("--data-dir", str(steward.data_dir)) if operation == "restore" else ()),
        )
        assert done.returncode == 1
        assert done.stderr.decode().startswith(f"steward: {file} is ")


def repacked(archive: bytes, content: bytes) -> bytes:
    """Return a snapshot archive with this content, and with a valid checksum."""
    target = io.BytesIO()
    digest = hashlib.sha256(content).hexdigest()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as source,
        tarfile.open(fileobj=target, mode="w:gz") as made,
    ):
        for entry in source:
            text = {
                "state.bin": content,
                "SHA256SUMS": f"{digest}  state.bin\n".encode(),
            }.get(entry.name, b"{}")
            entry.size = len(text)
            made.addfile(entry, io.BytesIO(text))
    return target.getvalue()


async def test_crash_during_a_snapshot_leaves_no_file(steward: Steward) -> None:
    await steward.stop()
    unfinished = store_dir(steward.data_dir) / ".unfinished"
    unfinished.mkdir(exist_ok=True)
    (unfinished / "half").write_text("what was written until the crash")
    await steward.start()
    assert not unfinished.exists()


PLAINLY = [
    ("GET", "/v1/volumes", 200, "[]"),
    ("GET", "/v1/plugins", 200, "[]"),
    ("GET", "/v1/volume/csi/data", 404, "volume not found"),
    ("GET", "/v1/quotas", 501, "Enterprise only endpoint"),
    ("PUT", "/v1/sentinel/policy/x", 501, "Enterprise only endpoint"),
    ("POST", "/v1/node/pool/gpu", 400, "Request body is empty"),
    ("DELETE", "/v1/operator/raft/peer", 500, "this is the only server"),
    ("PUT", "/v1/operator/snapshot", 500, "stop it"),
]


async def test_unsupported_multi_host_feature_gets_a_clear_error(steward: Steward) -> None:
    answers = [await steward.request(method, path) for method, path, _, _ in PLAINLY]
    assert [answer.status_code for answer in answers] == [status for _, _, status, _ in PLAINLY]
    said = [text in one.text for (_, _, _, text), one in zip(PLAINLY, answers, strict=True)]
    assert said == [True] * len(PLAINLY)


async def test_scheduler_worker_is_shown_and_set(steward: Steward) -> None:
    kinds = ["service", "batch", "system", "sysbatch", "_core"]
    (worker,) = (await steward.get("/v1/agent/schedulers"))["schedulers"]
    assert (worker["enabled_schedulers"], worker["status"]) == (kinds, "Started")
    path = "/v1/agent/schedulers/config"
    shown = await steward.get(path)
    assert (shown["num_schedulers"], shown["enabled_schedulers"]) == (1, kinds)
    assert await steward.post(path, {**shown, "enabled_schedulers": kinds[::-1]}) == shown
    for change, told in (
        ({"num_schedulers": -1}, "num_schedulers is -1; it must be 0 or 1"),
        ({"num_schedulers": 4}, "num_schedulers is 4; it must be 0 or 1: a server has one worker"),
        ({"enabled_schedulers": ["system"]}, 'enabled_schedulers lacks "_core"'),
        ({"enabled_schedulers": []}, 'enabled_schedulers lacks "_core"'),
        (
            {"enabled_schedulers": ["_core", "other"]},
            f'enabled_schedulers has the unknown type "other"; the types are {", ".join(kinds)}',
        ),
    ):
        answer = await steward.request("POST", path, {**shown, **change})
        assert (answer.status_code, answer.text) == (400, f"Invalid request: {told}")
    fewer = {**shown, "enabled_schedulers": ["_core", "system"]}
    assert await steward.post(path, fewer) == {**shown, "enabled_schedulers": ["system", "_core"]}
    (worker,) = (await steward.get("/v1/agent/schedulers"))["schedulers"]
    assert worker["enabled_schedulers"] == ["system", "_core"]
    await steward.post(path, {**shown, "num_schedulers": 0})
    assert (await steward.get("/v1/agent/schedulers"))["schedulers"] == []
    assert (await steward.get(path))["num_schedulers"] == 0


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("sort", "change, name"),
        ("type", "service, batch, system, sysbatch"),
        ("status", "pending, running, dead"),
    ],
)
async def test_unknown_value_of_a_parameter_gets_the_valid_values(
    steward: Steward, name: str, choices: str
) -> None:
    answer = await steward.request("GET", f"/v1/jobs/statuses?{name}=loud")
    assert (answer.status_code, answer.text) == (400, f"{name} = 'loud' must be one of {choices}")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/jobs", "GET, POST, PUT"),
        ("/v1/job/web", "DELETE, GET, POST, PUT"),
        ("/v1/nodes", "GET"),
        ("/ui/jobs", "GET"),
    ],
)
async def test_refused_method_gets_the_permitted_ones(
    steward: Steward, path: str, allowed: str
) -> None:
    answer = await steward.request("PATCH", path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
