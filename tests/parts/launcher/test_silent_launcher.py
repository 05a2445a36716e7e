"""A launcher that is stopped, or that a file system blocks, delays no client of the API."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon.api.cluster.gauges import gauges
from daemon.api.routes import ROUTES
from daemon.clock import SystemClock
from daemon.identity.lazy_methods import LazyMethods
from daemon.launcher.channel import pair, receive, send
from daemon.launcher.client import Impatience, Launcher, LauncherSilent
from daemon.launcher.messages import (
    ClaimList,
    ListClaims,
    NumberedReply,
    NumberedRequest,
    RemoveVolume,
    StartSession,
)
from daemon.runner.core.task_log import Logs
from daemon.web.dispatcher import Dispatcher
from daemon.web.request_head import RequestHead
from storage.store import Store
from tests.parts.api.requests import parts_of
from tests.parts.evals.cluster import Cluster
from tests.parts.launcher.conftest import ordered
from tests.parts.ui.conftest import Runner
from tests.samples import job
from tests.unit.scheduler.world import node

ALLOCATION = "00000000-0000-4000-8000-00000000000a"
LIST = ListClaims(allocation=ALLOCATION)


class Silent:
    """A launcher that answers only if told to."""

    def __init__(self) -> None:
        self._ours, self._theirs = pair()
        self.client = Launcher(self._ours)
        self._decode = msgspec.msgpack.Decoder(NumberedRequest).decode

    def answer(self) -> None:
        """Answer the next request with an empty list of claims."""
        question = self._decode(receive(self._theirs)[0])
        reply = NumberedReply(number=question.number, descriptors=0, body=ClaimList(found=[]))
        send(self._theirs, msgspec.msgpack.encode(reply))

    def close(self) -> None:
        for item in (self._ours, self._theirs):
            item.close()


@asynccontextmanager
async def running() -> AsyncIterator[Silent]:
    silent, reading = Silent(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(silent.client.run, reading)
        yield silent
        nursery.cancel_scope.cancel()
    silent.close()


@pytest.fixture
async def silent() -> AsyncIterator[Silent]:
    async with running() as one:
        yield one


async def test_client_request_waits_at_most_five_seconds(
    silent: Silent, autojump_clock: trio.testing.MockClock
) -> None:
    begun = trio.current_time()
    with Impatience(), pytest.raises(LauncherSilent, match="within 5 s"):
        await silent.client.claims(LIST)
    assert trio.current_time() == begun + 5


async def test_internal_request_waits_without_limit(
    silent: Silent, autojump_clock: trio.testing.MockClock
) -> None:
    with trio.move_on_after(1000) as wait:
        await silent.client.claims(LIST)
    assert wait.cancelled_caught


async def test_client_request_processed_by_a_child_can_take_longer(
    silent: Silent, autojump_clock: trio.testing.MockClock
) -> None:
    with Impatience(), trio.move_on_after(1000) as wait:
        await silent.client._request(RemoveVolume(volume=ALLOCATION))
    assert wait.cancelled_caught


async def test_silence_is_detected_logged_and_ends(
    silent: Silent, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client = silent.client
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.watch, lambda: int(trio.current_time() * 10**9))
        await trio.sleep(6)
        silent.answer()
        await trio.testing.wait_all_tasks_blocked()
        assert client.silent_since is None
        await trio.sleep(8)
        assert client.silent_since is not None
        assert "has not answered for 2 s" in caplog.text
        with Impatience(), pytest.raises(LauncherSilent):  # immediately
            await client.claims(LIST)
        session = StartSession(allocation=ALLOCATION, task="main", attempt=0, is_terminal=False)
        with pytest.raises(OSError, match="does not answer"):
            await client.open_session(session, ordered("/bin/true"))
        await trio.sleep(10)
        silent.answer()
        silent.answer()
        await trio.testing.wait_all_tasks_blocked()
        assert client.silent_since is None
        assert "the launcher answers again, after" in caplog.text
        nursery.cancel_scope.cancel()


async def test_busy_launcher_is_not_silent(
    silent: Silent, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    client = silent.client
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.watch, lambda: int(trio.current_time() * 10**9))
        for _ in range(20):  # requests before the ping
            nursery.start_soon(client.claims, LIST)
        await trio.sleep(5.5)
        for _ in range(18):
            silent.answer()
            await trio.sleep(1)
            assert client.silent_since is None
        assert "has not answered" not in caplog.text
        nursery.cancel_scope.cancel()


async def ask(dispatcher: Dispatcher, path: str, query: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an answer."""

    async def body() -> bytes:
        return b""

    head = RequestHead(
        method="GET", target=path.encode(), query=query, headers={"host": "localhost"}
    )
    answer = await dispatcher.answer(head, body)
    return answer.status, answer.headers, answer.body


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/client/fs/ls/{}", "path=/"),
        ("/v1/client/fs/cat/{}", "path=/x"),
        ("/v1/client/fs/stream/{}", "path=/x"),
        ("/v1/client/fs/logs/{}", "task=main&type=stdout"),
        ("/v1/client/fs/lines/{}", "task=main&type=stdout"),
        ("/v1/job/web/logs", "type=stdout"),
    ],
)
async def test_files_and_logs_answer_503_while_the_launcher_is_silent(
    store: Store,
    silent: Silent,
    autojump_clock: trio.testing.MockClock,
    tmp_path: Path,
    path: str,
    query: str,
) -> None:
    cluster = Cluster(store)
    await cluster.join(node())
    await cluster.register(job("web"))
    await cluster.work()
    await cluster.run_all()
    (allocation,) = cluster.allocations("web")
    parts = parts_of(store, asks=False)
    parts = msgspec.structs.replace(parts, logs=Logs(silent.client, tmp_path))
    dispatcher = Dispatcher(parts, ROUTES, (), trio.Event())
    status, headers, body = await ask(dispatcher, path.format(allocation.id), query)
    assert (status, headers.get("Retry-After")) == (503, "5")
    assert b"the launcher has not answered within 5 s" in body


async def test_health_and_metrics_name_a_silent_launcher(store: Store, tmp_path: Path) -> None:
    silent, tasks = Silent(), Runner()
    parts = parts_of(store, asks=False)
    given: dict[str, Any] = {"tasks": tasks, "door": LazyMethods(parts.fences)}
    parts = msgspec.structs.replace(
        parts, clock=SystemClock(), logs=Logs(silent.client, tmp_path), **given
    )
    dispatcher = Dispatcher(parts, ROUTES, (), trio.Event())
    assert (await ask(dispatcher, "/v1/agent/health", ""))[0] == 200
    silent.client.silent_since = SystemClock().now() - 90 * 10**9
    status, _, body = await ask(dispatcher, "/v1/agent/health", "")
    assert status == 500
    assert "has not answered for 9" in msgspec.json.decode(body)["client"]["message"]
    found = {gauge.name: gauge.value for gauge in await gauges(parts)}
    assert 90 <= found["steward.launcher.silent_seconds"] < 99
    silent.close()
