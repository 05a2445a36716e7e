"""Input files: uploaded once, continued after an interruption, and given to a child."""

import hashlib
import os
from pathlib import Path

import httpx
from steward_client import Client

from tests.client_library.programs import Backend
from tests.service.daemon import Steward

PIECE = 1024 * 1024


def parent() -> dict[str, object]:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", "sha256sum < local/in"]},
        "Artifacts": [{"GetterSource": "payload://in", "RelativeDest": "local/"}],
        "Resources": {"CPU": 20, "MemoryMB": 20},
    }
    group = {"Name": "group", "Tasks": [task]}
    return {"ID": "each", "Type": "batch", "ParameterizedJob": {}, "TaskGroups": [group]}


async def test_child_gets_an_uploaded_file(
    backend: Backend, steward: Steward, tmp_path: Path
) -> None:
    content = os.urandom(PIECE + 7)
    (tmp_path / "input").write_bytes(content)
    wanted = hashlib.sha256(content).hexdigest()
    await steward.register(parent())
    async with httpx.AsyncClient() as http:  # the first part of an interrupted upload
        answer = await http.put(
            f"{steward.address}/v1/payload/{wanted}",
            params={"size": len(content), "offset": 0},
            content=content[:10],
        )
    assert answer.json()["Received"] == 10

    async def program(client: Client):
        digest = await client.upload(tmp_path / "input")
        assert await client.upload(str(tmp_path / "input")) == digest
        child = await client.dispatch("each", files={"in": digest})
        return digest, await client.wait(child)

    digest, result = await backend.with_client(steward, program)
    assert digest == wanted
    assert result.tasks["main"].stdout.split()[0].decode() == wanted


SOURCE = """
job "direct" {
  type = "batch"
  group "group" {
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "sha256sum < local/in"]
      }
      artifact {
        source      = "payload://in"
        destination = "local/"
      }
    }
  }
}
"""


async def test_registered_job_gets_an_uploaded_file(
    backend: Backend, steward: Steward, tmp_path: Path
) -> None:
    (tmp_path / "input").write_bytes(b"content")

    async def program(client: Client):
        digest = await client.upload(tmp_path / "input")
        run = await client.run(await client.parse(SOURCE), files={"in": digest})
        return await client.wait(run)

    result = await backend.with_client(steward, program)
    wanted = hashlib.sha256(b"content").hexdigest()
    assert result.tasks["main"].stdout.split()[0].decode() == wanted
