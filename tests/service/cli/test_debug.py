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


async def test_a_bundle_holds_what_is_there_and_no_secret(steward: Steward) -> None:
    task = {"Name": "main", "Driver": "raw_exec", "Env": {"PASSWORD": HIDDEN}}
    group = {"Name": "web", "Count": 0, "Tasks": [{**task, "Config": {"command": "/bin/true"}}]}
    await steward.register({"ID": "web", "TaskGroups": [group], "Meta": {"a": HIDDEN}})
    await steward.request("PUT", "/v1/var/app", {"Items": {"k": HIDDEN}})
    file = steward.directory / "bundle.tar.gz"
    words = ("operator", "debug", "-output", str(file), "-duration", "100ms")
    done = await steward.cli(*words)
    assert done.returncode == 0, done.stderr
    found = contents(file)
    assert [one["ID"] for one in json.loads(found["jobs.json"])] == ["web"]
    assert {"agent.json", "metrics.json", "log.txt", "version.txt"} < found.keys()
    assert [name for name, content in found.items() if HIDDEN.encode() in content] == []
    again = await steward.cli(*words)
    assert again.returncode == 1
    assert b"exists already" in again.stderr
