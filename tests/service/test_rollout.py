"""Two services of one job: one finds the other through a template during its replacement."""

import sys
from pathlib import Path
from typing import Any

import trio

from storage.records.base import SECOND
from tests.service.daemon import Steward
from tests.service.streaming import Stream, open_stream
from tests.time_limits import HAPPENS_WITHIN

# A web server that becomes healthy when the file in its argument exists. On a stop signal, it
# completes open connections.
SERVER = """
import asyncio, os, pathlib, signal, sys

version, gate = sys.argv[1:]
clients, left, stopping = set(), asyncio.Event(), asyncio.Event()

async def serve(reader, writer):
    clients.add(writer)
    while request := (await reader.readline()).split():
        while (await reader.readline()).strip():
            pass
        status = 503 if request[1] == b"/health" and not pathlib.Path(gate).exists() else 200
        text = version.encode()
        writer.write(b"HTTP/1.1 %d x\\r\\nContent-Length: %d\\r\\n\\r\\n%b" % (status, len(text), text))
        await writer.drain()
    writer.close()
    clients.discard(writer)
    left.set()

async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopping.set)
    port = os.environ["NOMAD_PORT_http"]
    async with await asyncio.start_server(serve, "127.0.0.1", port):
        await stopping.wait()
        while clients:
            left.clear()
            await left.wait()

asyncio.run(main())
"""
# A load generator that repeatedly sends requests to all known instances, and prints new responses.
LOAD = """
import http.client, os, pathlib, time

upstreams = pathlib.Path(os.environ["NOMAD_TASK_DIR"], "upstreams")
connections, answers = {}, {}
while True:
    listed = upstreams.read_text().split()
    if answers and not listed:
        print("failed: nobody is there", flush=True)
    for gone in connections.keys() - set(listed):
        connections.pop(gone).close()
        print("left", answers.pop(gone), gone, flush=True)
    for address in listed:
        connection = connections.setdefault(address, http.client.HTTPConnection(address))
        try:
            connection.request("GET", "/")
            text = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException) as error:
            text = f"failed: {error!r}"
        if answers.get(address) != text:
            print(text, address, flush=True)
        answers[address] = text
    time.sleep(0.01)
"""
UPDATE = {
    "MaxParallel": 1,
    "HealthCheck": "checks",
    "MinHealthyTime": SECOND // 100,
    "HealthyDeadline": HAPPENS_WITHIN * SECOND,
    "ProgressDeadline": 2 * HAPPENS_WITHIN * SECOND,
}
UPSTREAMS = '{{ range nomadService "web" }}{{ .Address }}:{{ .Port }}\n{{ end }}'


def task(name: str, text: str, *args: str, **fields: Any) -> Any:
    return {
        "Name": name,
        "Driver": "raw_exec",
        "Config": {"command": sys.executable, "args": ["-c", text, *args]},
        "Resources": {"CPU": 20, "MemoryMB": 20},
        "KillTimeout": HAPPENS_WITHIN * SECOND,
        **fields,
    }


def job(version: str, gate: Path) -> Any:
    """Return the job: its web servers return their version, and are healthy if the gate file
    exists."""
    check = {
        "Type": "http",
        "Path": "/health",
        "Interval": SECOND,
        "Timeout": HAPPENS_WITHIN * SECOND,
    }
    web = {
        "Name": "web",
        "Count": 2,
        "Tasks": [task("server", SERVER, version, str(gate))],
        "Networks": [{"Mode": "host", "DynamicPorts": [{"Label": "http"}]}],
        "Services": [
            {
                "Name": "web",
                "PortLabel": "http",
                "Provider": "nomad",
                "Address": "127.0.0.1",
                "Checks": [check],
            }
        ],
        "Update": UPDATE,
    }
    template = {"EmbeddedTmpl": UPSTREAMS, "DestPath": "local/upstreams", "Splay": 0}
    template["ChangeMode"] = "noop"
    load = {
        "Name": "load",
        "Tasks": [task("load", LOAD, Templates=[template])],
        "Update": UPDATE,
    }
    return {"ID": "shop", "Type": "service", "TaskGroups": [web, load]}


class Said:
    """The output of the load generator, line by line."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.lines: list[str] = []

    async def until(self, *beginnings: str) -> None:
        """Wait until the load generator has printed a new line for each of these beginnings."""
        wanted = list(beginnings)
        while wanted:
            line = (await self._stream.line()).decode()
            self.lines.append(line)
            assert not line.startswith("failed"), self.lines
            if found := [item for item in wanted if line.startswith(item)]:
                wanted.remove(found[0])


async def until_checked(steward: Steward, alloc_id: str, status: str) -> None:
    """Poll until a check of an allocation has this result."""
    path = f"/v1/client/allocation/{alloc_id}/checks"
    with trio.fail_after(HAPPENS_WITHIN):
        while status not in {item["Status"] for item in (await steward.get(path)).values()}:  # noqa: ASYNC110  # no event reports it
            await trio.sleep(0.02)


async def until_running(steward: Steward, group: str, version: int) -> list[str]:
    """Return the allocations of a version of a group once one runs."""

    def running(shown: Any) -> list[str]:
        return [
            alloc["ID"]
            for alloc in shown
            if (alloc["TaskGroup"], alloc["JobVersion"], alloc["ClientStatus"])
            == (group, version, "running")
        ]

    return running(await steward.until("/v1/job/shop/allocations", running))


async def test_rolling_update_of_an_upstream_service_fails_no_request(
    steward: Steward, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    await steward.register(job("one", Path("/")))
    (load,) = await until_running(steward, "load", 0)
    query = {"task": "load", "type": "stdout", "follow": True, "plain": True}
    async with open_stream(steward, f"/v1/client/fs/logs/{load}", **query) as stream:
        said = Said(stream)
        await said.until("one", "one")

        await steward.register(job("two", gate))
        (first,) = await until_running(steward, "web", 1)
        await until_checked(steward, first, "failure")
        await said.until("left one")
        deployment = await steward.get("/v1/job/shop/deployment")
        assert deployment["Status"] == "running"
        assert deployment["TaskGroups"]["web"]["HealthyAllocs"] == 0
        assert len(await until_running(steward, "web", 0)) == 1

        gate.touch()
        await said.until("two", "left one", "two")
        await steward.until(
            "/v1/job/shop/deployment", lambda shown: shown["Status"] == "successful"
        )
    ended = [
        (alloc["JobVersion"], alloc["ClientStatus"])
        for alloc in await steward.get("/v1/job/shop/allocations", all=True)
        if alloc["TaskGroup"] == "web"
    ]
    assert sorted(ended) == [(0, "complete")] * 2 + [(1, "running")] * 2
