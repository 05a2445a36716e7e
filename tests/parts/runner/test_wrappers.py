"""Permitted and forbidden requests of wrappers, sent by a test as wrapper and as attacker."""

import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from daemon.api.wrapper import MOST
from storage.records.base import SECOND
from storage.store import Store
from tests.fakes.slurm.world import fake_slurm
from tests.parts.runner.pool import PoolWorld, open_pool, settings
from tests.parts.runner.world import batch, script, state_of


class Claimant:
    """A pending attempt in the cluster, and a client with its claim."""

    def __init__(self, world: PoolWorld, alloc_id: str) -> None:
        self.world, self.alloc_id = world, alloc_id
        (job,) = world.slurm.jobs(f"alloc-{alloc_id}")
        self.job_id = str(job["id"])
        self.claim: str = job["environment"]["STEWARD_CLAIM"]
        self.token = ""

    async def ask_for_it(self, nonce: str = "n1") -> int:
        """Claim the attempt; return the status."""
        path = f"/v1/wrapper/claim?nonce={nonce}&job={self.job_id}&host=node1"
        answer = await self.world.ask("POST", path, self.claim)
        if answer.status_code == 200:
            with tarfile.open(fileobj=io.BytesIO(answer.content), mode="r:gz") as archive:
                said = archive.extractfile(".steward/settings")
                assert said is not None
                text = said.read().decode()
            self.token = text.partition("secret=")[2].partition(" ")[0]
        return answer.status_code

    async def send(self, offset: int, data: bytes, kind: str = "stdout") -> tuple[int, str]:
        path = f"/v1/wrapper/log/{kind}?offset={offset}"
        answer = await self.world.ask("POST", path, self.token, content=data)
        return answer.status_code, answer.text.strip()

    async def end(self, query: str = "code=0&why=") -> int:
        answer = await self.world.ask("POST", f"/v1/wrapper/result?{query}", self.token)
        return answer.status_code


@pytest.fixture
async def world(store: Store, tmp_path: Path) -> AsyncIterator[PoolWorld]:
    with fake_slurm(tmp_path / "slurm") as slurm:
        for node in ("node1", "node2"):
            slurm.drain(node, "for a test")
        async with open_pool(store, slurm, settings(tmp_path)) as opened:
            yield opened


@pytest.fixture
async def claimant(world: PoolWorld) -> Claimant:
    alloc_id = await world.place(batch(script("exit 0", kill_timeout=SECOND)))
    await world.until(alloc_id, lambda _: any("waits" in text for text in world.said(alloc_id)))
    return Claimant(world, alloc_id)


async def test_an_attempt_can_be_claimed_once(claimant: Claimant) -> None:
    assert await claimant.ask_for_it() == 200
    assert await claimant.ask_for_it("another") == 409
    await claimant.world.until_running(claimant.alloc_id)
    assert await claimant.end() == 200
    alloc = await claimant.world.until_done(claimant.alloc_id)
    assert alloc.client_status == "complete"


async def test_wrapper_that_missed_the_response_can_claim_again(claimant: Claimant) -> None:
    assert await claimant.ask_for_it() == 200
    before = claimant.token
    assert await claimant.ask_for_it() == 200
    assert claimant.token != before
    assert (await claimant.send(0, b"x"))[0] == 200


async def test_claim_secret_and_run_secret_are_not_interchangeable(claimant: Claimant) -> None:
    assert await claimant.ask_for_it() == 200
    claimant.token, claimant.claim = claimant.claim, claimant.token
    assert (await claimant.send(0, b"x"))[0] == 403
    assert await claimant.ask_for_it() == 403


@pytest.mark.parametrize("secret", ["", "nonsense", "x.0.y"])
async def test_caller_without_a_valid_secret_gets_nothing(claimant: Claimant, secret: str) -> None:
    ask = claimant.world.ask
    for method, path in (
        ("POST", "/v1/wrapper/claim?nonce=n"),
        ("POST", "/v1/wrapper/files"),
        ("POST", "/v1/wrapper/log/stdout?offset=0"),
        ("GET", "/v1/wrapper/orders"),
        ("POST", "/v1/wrapper/result?code=0"),
    ):
        assert (await ask(method, path, secret)).status_code in (401, 403, 410)
    guess = f"{claimant.alloc_id}.0.{'0' * 64}"
    assert (await ask("POST", "/v1/wrapper/claim?nonce=n", guess)).status_code == 403
    assert state_of(claimant.world.find(claimant.alloc_id)).state == "pending"


async def test_guessing_client_is_rejected_and_a_valid_one_is_not(claimant: Claimant) -> None:
    guess = f"{claimant.alloc_id}.0.{'0' * 64}"
    while True:
        answer = await claimant.world.ask("POST", "/v1/wrapper/claim?nonce=n", guess)
        if answer.status_code == 429:
            break
        assert answer.status_code == 403
    assert await claimant.ask_for_it() == 200


async def test_wrapper_listener_serves_no_other_routes(claimant: Claimant) -> None:
    assert await claimant.ask_for_it() == 200
    for path in ("/", "/ui/", "/v1/jobs", "/v1/agent/self", "/v1/sys/health", "/v1/status/leader"):
        for secret in ("", claimant.token):
            answer = await claimant.world.ask("GET", path, secret)
            assert answer.status_code in (400, 403, 404), path


async def test_repeated_output_is_stored_once_and_in_order(claimant: Claimant) -> None:
    await claimant.ask_for_it()
    assert await claimant.send(0, b"one\n") == (200, "4")
    assert await claimant.send(0, b"one\n") == (200, "4")
    assert await claimant.send(2, b"e\ntwo\n") == (200, "8")
    assert claimant.world.output(claimant.alloc_id) == "one\ntwo\n"


async def test_log_lines_lost_by_the_host_do_not_block_later_ones(claimant: Claimant) -> None:
    await claimant.ask_for_it()
    assert await claimant.send(0, b"one\n") == (200, "4")
    assert await claimant.send(100, b"later\n") == (200, "106")
    assert await claimant.send(100, b"later\n") == (200, "106")
    assert claimant.world.output(claimant.alloc_id) == "one\nlater\n"
    assert claimant.world.rows(claimant.alloc_id)[0].stdout_base == -96


async def announced(claimant: Claimant, size: int) -> bytes:
    """Announce a piece of this size, but send nothing; return the beginning of the response."""
    url = claimant.world.client.base_url
    stream = await trio.open_tcp_stream(url.host, url.port or 0)
    head = (
        f"POST /v1/wrapper/log/stdout?offset=0 HTTP/1.1\r\nHost: {url.host}\r\n"
        f"Authorization: Bearer {claimant.token}\r\nContent-Length: {size}\r\n\r\n"
    )
    async with stream:
        await stream.send_all(head.encode())
        return bytes(await stream.receive_some())


async def test_data_from_a_wrapper_is_bounded(claimant: Claimant) -> None:
    await claimant.ask_for_it()
    assert b" 413 " in await announced(claimant, MOST + 1)
    assert (await claimant.send(0, b"x", "secrets"))[0] == 404
    for query in ("code=999&why=", "code=-1", "code=1&why=../x", "code=" + "9" * 99):
        assert await claimant.end(query) == 400
    for number in ("-1", "x", "9" * 40):
        answer = await claimant.world.ask(
            "GET", f"/v1/wrapper/orders?seen={number}", claimant.token
        )
        assert answer.status_code == 400


@pytest.mark.parametrize(("secret", "status"), [("", b" 401 "), ("x" * 64, b" 403 ")])
async def test_body_without_a_valid_secret_is_not_read(
    claimant: Claimant, secret: str, status: bytes
) -> None:
    claimant.token = secret
    assert status in await announced(claimant, 5)


async def test_wrapper_commands_are_sent_immediately_and_once(claimant: Claimant) -> None:
    world = claimant.world
    await claimant.ask_for_it()
    await world.until_running(claimant.alloc_id)
    said: list[str] = []

    async def listen() -> None:
        answer = await world.ask(
            "GET", "/v1/wrapper/orders?user=200&system=100&pages=10", claimant.token, timeout=None
        )
        said.append(answer.text)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await trio.testing.wait_all_tasks_blocked()
        await world.runner.signal(claimant.alloc_id, "main", "SIGUSR1")
    number, *order = said[0].split()
    assert order == ["signal", "USR1"]
    used = await world.runner.usage(claimant.alloc_id)
    assert used.tasks["main"].resource_usage.memory_stats.rss == 10 * 4096
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.stop, claimant.alloc_id)
        path = f"/v1/wrapper/orders?seen={number}"
        answer = await world.ask("GET", path, claimant.token, timeout=None)
    assert answer.text.split()[1:] == ["stop", "INT", "1"]
    assert await claimant.end("code=130&why=") == 200
    await world.until_done(claimant.alloc_id)
    assert (await world.ask("GET", path, claimant.token)).status_code == 410


async def test_claim_for_a_stopped_allocation_is_refused(claimant: Claimant) -> None:
    world = claimant.world
    await world.stop(claimant.alloc_id)
    await world.until_done(claimant.alloc_id)
    assert await claimant.ask_for_it() == 410
