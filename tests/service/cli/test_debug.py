"""`steward operator debug` against a real daemon."""

import json
import tarfile
from pathlib import Path

from tests.service.daemon import Steward

HIDDEN = "correct-horse"


def contents(file: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(file) as bundle:
        for entry in bundle:
            opened = bundle.extractfile(entry)
            found[Path(entry.name).name] = opened.read() if opened else b""
    return found


def task(name: str, **fields: object) -> dict[str, object]:
    secret = {"Env": {"PASSWORD": HIDDEN}, "RestartPolicy": {"Attempts": 0, "Mode": "fail"}}
    config = {"command": "/bin/false", "args": [HIDDEN]}
    return {"Name": name, "Driver": "raw_exec", "Config": config, **secret, **fields}


def failing() -> list[dict[str, object]]:
    """Return tasks that fail with a reason, next to data that no other user may see."""
    source = f"http://user:{HIDDEN}@127.0.0.1:9/x?sig={HIDDEN}"
    wrong = f"{{{{ with nomadVar `nomad/jobs/web` }}}}{{{{ parseInt `{HIDDEN}` }}}}{{{{ end }}}}"
    return [
        task("ends"),
        task("fetches", Artifacts=[{"GetterSource": source, "GetterHeaders": {"x": HIDDEN}}]),
        task("writes", Templates=[{"EmbeddedTmpl": wrong, "DestPath": "local/x"}]),
    ]


async def test_debug_bundle_has_the_available_data_without_secrets(steward: Steward) -> None:
    policy = {"api_key": HIDDEN}
    groups = [
        {
            "Name": str(item["Name"]),
            "Count": 1,
            "Tasks": [item],
            "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
            "Scaling": {"Min": 0, "Max": 9, "Policy": policy},
        }
        for item in failing()
    ]
    await steward.request("PUT", "/v1/var/nomad/jobs/web", {"Items": {"k": HIDDEN}})
    job = {"ID": "web", "Type": "batch", "TaskGroups": groups, "Meta": {"a": HIDDEN}}
    await steward.register(job)
    await steward.until("/v1/job/web", lambda found: found["Status"] == "dead")
    file = steward.directory / "bundle.tar.gz"
    words = ("operator", "debug", "-output", str(file), "-duration", "100ms")
    done = await steward.cli(*words)
    assert done.returncode == 0, done.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    found = contents(file)
    assert found["allocations.json"].count(b"Failed Artifact Download") >= 1
    assert found["allocations.json"].count(b"Template failed") >= 1
    assert [pair["ID"] for pair in json.loads(found["jobs.json"])] == ["web"]
    assert {"agent.json", "metrics.json", "log.txt", "version.txt"} < found.keys()
    assert [name for name, content in found.items() if HIDDEN.encode() in content] == []
    again = await steward.cli(*words)
    assert again.returncode == 1
    assert b"exists already" in again.stderr
