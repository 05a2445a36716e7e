"""A hostile task fails alone with a reason, and other tasks keep running."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from storage.records.base import SECOND
from storage.records.task import Artifact, Check, CheckRestart, Service, Template
from storage.store import Store
from tests.parts.runner.test_artifacts import tar
from tests.parts.runner.test_services import holding
from tests.parts.runner.world import Pipe, World, batch, open_world, script, service

MEGABYTE = 1024 * 1024
PAGES = {
    "/bomb.tgz": tar({"bomb": b"\0" * 2 * MEGABYTE}),
    "/lead.tgz": tar({"../outside": b"x"}),
}


async def serve(stream: trio.SocketStream) -> None:
    """Answer as an attacker would: bombs, redirects, endless pages, or no answer."""
    async with stream:
        try:
            request = bytes(await stream.receive_some())
            if not request:  # the client disconnected before it sent a request
                return
            asked = request.split(b" ")[1].decode()
            if asked in PAGES:
                size = len(PAGES[asked])
                await stream.send_all(b"HTTP/1.1 200 x\r\nContent-Length: %d\r\n\r\n" % size)
                await stream.send_all(PAGES[asked])
            elif asked == "/metadata":
                away = b"Location: http://169.254.169.254/latest\r\nContent-Length: 0\r\n\r\n"
                await stream.send_all(b"HTTP/1.1 302 x\r\n" + away)
            elif asked == "/round":
                away = b"Location: /round\r\nContent-Length: 0\r\n\r\n"
                await stream.send_all(b"HTTP/1.1 302 x\r\n" + away)
            elif asked == "/silence":
                await trio.sleep_forever()
            else:
                await stream.send_all(b"HTTP/1.1 200 x\r\n" + b"X: y" * (asked == "/head"))
                await stream.send_all(b"" if asked == "/head" else b"\r\n")
                while True:
                    await stream.send_all(b"y" * 65536)
        except trio.BrokenResourceError:  # the client has disconnected
            return


@pytest.fixture
async def port(nursery: trio.Nursery) -> int:
    (listener,) = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), serve, 0)
    number: int = listener.socket.getsockname()[1]
    return number


@pytest.fixture
async def world(store: Store, data_dir: Path) -> AsyncIterator[World]:
    async with open_world(store, data_dir, artifact_max_mb=1) as opened:
        yield opened


@pytest.fixture
async def innocent(world: World, pipe: Pipe) -> AsyncIterator[None]:
    """Run another task that must neither end nor respond late."""
    text = f"echo up > {pipe.path}; while ! test -e local/go; do sleep 0.01; done; echo well"
    alloc_id = await world.place(batch(script(text), job_id="innocent"))
    assert await pipe.line() == "up"
    yield
    (world.directory(alloc_id) / "main/local/go").touch()
    await world.until_done(alloc_id)
    assert (world.find(alloc_id).client_status, world.output(alloc_id)) == ("complete", "well\n")


LOOP = "{{ range loop 9999 }}{{ range loop 9999 }}{{ end }}{{ end }}"
GROW = "{{ $x := `aaaaaaaa` }}{{ range loop 99 }}{{ $x = print $x $x }}{{ end }}"


def artifact(path: str) -> Any:
    return {"artifacts": [Artifact(getter_source=f"http://127.0.0.1:${{PORT}}{path}")]}


def template(source: str) -> Any:
    return {"templates": [Template(embedded_tmpl=source, dest_path="local/out")]}


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        (template(LOOP), "Template", "more than 500000 steps"),
        (template(GROW), "Template", "Template failed: local/out"),
        (artifact("/bomb.tgz"), "Failed Artifact Download", "more than 1048576 bytes"),
        (artifact("/lead.tgz"), "Failed Artifact Download", "outside"),
        (artifact("/endless"), "Failed Artifact Download", "more than 1048576 bytes"),
        (artifact("/head"), "Failed Artifact Download", "failed to download artifact"),
        (artifact("/metadata"), "Failed Artifact Download", "metadata service"),
        (artifact("/round"), "Failed Artifact Download", "redirects"),
    ],
)
@pytest.mark.usefixtures("innocent")
async def test_hostile_task_fails_without_affecting_others(
    world: World, port: int, fields: Any, kind: str, words: str
) -> None:
    task = script("echo never", env={"PORT": str(port)}, **fields)
    alloc_id = await world.place(batch(task))
    await world.until_status(alloc_id, "failed")
    told = [text for type_, text in world.told(alloc_id) if type_ == kind]
    assert words in told[-1]
    assert "Started" not in world.types(alloc_id)


def checked(path: str, **fields: Any) -> Service:
    check = Check(
        name="alive",
        type="http",
        path=path,
        interval=SECOND // 50,
        timeout=SECOND // 5,
        task_name="main",
        **fields,
    )
    return Service(name="web", port_label="http", provider="nomad", checks=[check])


@pytest.mark.parametrize("path", ["/silence", "/head"])
@pytest.mark.usefixtures("innocent")
async def test_port_with_invalid_responses_is_unhealthy_and_its_task_follows_its_policy(
    world: World, port: int, path: str
) -> None:
    services = [checked(path, check_restart=CheckRestart(limit=1, grace=0))]
    job = service(script("exec sleep 600"), services=services)
    alloc_id = await world.place(job, placement=holding(http=port))
    await world.until_status(alloc_id, "failed")  # the job allows no restarts
    told = 'healthcheck: check "alive" unhealthy'
    assert ("Restart Signaled", told) in world.told(alloc_id)


async def test_check_follows_no_redirect(world: World, port: int) -> None:
    job = service(script("exec sleep 600"), services=[checked("/metadata")])
    alloc_id = await world.place(job, placement=holding(http=port))
    while not (found := world.runner.checks(alloc_id)) or not found[0].status_code:  # noqa: ASYNC110  # no event reports it
        await trio.sleep(0.005)
    assert found[0].status_code == 302
