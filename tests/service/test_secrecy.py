"""Secrets stay where they belong: not in logs, files, arguments, errors, or a task's environment.

The daemon is executed instead of forked, because `/proc` shows its arguments and variables.
"""

import os
from pathlib import Path

from tests.service.daemon import Steward, as_development, open_steward

VALUE = "a-value-that-nobody-may-see"
ENVIRONMENT = {
    "ID": "env",
    "Type": "batch",
    "TaskGroups": [
        {
            "Name": "g",
            "EphemeralDisk": {"SizeMB": 10},
            "Tasks": [
                {
                    "Name": "main",
                    "Driver": "raw_exec",
                    "Config": {"command": "/usr/bin/env"},
                    "Resources": {"CPU": 20, "MemoryMB": 20},
                    "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
                }
            ],
        }
    ],
}


def everything_written(steward: Steward) -> bytes:
    """Return all data that the daemon has written: its files, its log, its arguments."""
    files = [path for path in steward.data_dir.rglob("*") if path.is_file()]
    kept = [path for path in files if path.name != "bootstrap-token"]
    arguments = Path(f"/proc/{steward.pid}/cmdline")
    return b"".join(path.read_bytes() for path in [*kept, steward.log, arguments])


async def used_in_all_ways(steward: Steward) -> list[str]:
    """Use valid and invalid secrets; return all of them."""
    root = (steward.directory / "root.key").read_text().strip()
    made = await steward.post("/v1/acl/token", {"Type": "management", "Name": "other"})
    await steward.post("/v1/var/app", {"Items": {"k": VALUE}})
    await steward.post("/v1/var/app", {"Items": {"k": f"{VALUE}-2"}})
    await steward.request("PUT", "/v1/var/app", {"Items": {"k": VALUE}}, cas=1)
    await steward.request("PUT", "/v1/var/bad path", {"Items": {"k": VALUE}})
    await steward.request("PUT", "/v1/var/app", {"Items": VALUE})
    await steward.request("GET", "/v1/jobs", token=VALUE, filter=f'ID == "{VALUE}')
    own, steward.token = steward.token, f"{VALUE}-token"
    await steward.request("GET", "/v1/jobs")
    steward.token = own
    return [VALUE, str(made["SecretID"]), own, root, bytes.fromhex(root).decode("latin-1")]


async def test_secret_is_not_written_in_plain_text(tmp_path: Path) -> None:
    async with open_steward(tmp_path, *as_development(tmp_path), executed=True) as steward:
        used = await used_in_all_ways(steward)
        await steward.register(ENVIRONMENT)
        (allocation,) = await steward.allocations("env", "complete")
        printed = await steward.log_of(allocation["ID"], "main")
        written = everything_written(steward)
        shown = (await steward.request("GET", "/v1/operator/audit")).content
        await steward.restart()
        written += everything_written(steward)
    assert b"app" in written
    assert "NOMAD_JOB_ID=env" in printed
    for secret in used:
        assert secret.encode("latin-1") not in written
        assert secret.encode("latin-1") not in shown
        assert secret not in printed


async def test_error_does_not_contain_a_secret(steward: Steward) -> None:
    for path, body in [
        ("/v1/var/bad path", {"Items": {"k": VALUE}}),
        ("/v1/var/app", {"Items": VALUE}),
        ("/v1/var/app", {"Items": {"k": [VALUE]}}),
    ]:
        answer = await steward.request("PUT", path, body)
        assert answer.status_code == 400
        assert VALUE not in answer.text


async def test_task_inherits_no_service_manager_variables(tmp_path: Path) -> None:
    kept = dict(os.environ)
    os.environ["CREDENTIALS_DIRECTORY"] = str(tmp_path / "credentials")
    os.environ["MY_API_TOKEN"] = VALUE
    try:
        async with open_steward(tmp_path, "--dev", executed=True) as steward:
            await steward.register(ENVIRONMENT)
            (allocation,) = await steward.allocations("env", "complete")
            printed = await steward.log_of(allocation["ID"], "main")
    finally:
        os.environ.clear()
        os.environ.update(kept)
    assert "CREDENTIALS_DIRECTORY" not in printed
    assert VALUE not in printed
