"""Endless responses: they end when their reader loses its token or its permissions."""

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon.acl import caller_cache
from daemon.acl.check import (
    KNOWN,
    Caller,
    RequiredCapability,
    on_namespace,
    on_object,
    on_scope,
)
from daemon.acl.grant import CapabilitySet
from daemon.api import jobs
from daemon.api.cluster import events, logs
from daemon.api.routes import ROUTES
from daemon.config.settings import Settings
from daemon.web import blocking, stream_auth, websockets
from daemon.web.request import ReadRoute, Request
from daemon.web.response_cache import ResponseCache
from daemon.web.stream_limit import StreamLimit
from storage.errors import Denied
from storage.queries import policies
from storage.queries import tokens as stored
from storage.records.acl import SPENT, Policy, Token
from storage.store import Store
from tests.parts.api.requests import caller, parts_of, request
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, job
from tests.unit.scheduler.world import node


async def shown(asked: Request) -> Request:
    """Return a request with a separate token named "a"."""
    tokens = asked.parts.tokens
    issued = await tokens.issue(Token(accessor="a", policies=("root",), created_at=NOW))
    return msgspec.structs.replace(asked, token=issued.secret, caller=tokens.resolve(issued.secret))


async def test_stream_ends_when_its_token_ends(store: Store, monkeypatch: Any) -> None:
    monkeypatch.setattr(stream_auth, "RECHECK", 0.0)
    asked = await shown(request(store, KNOWN, caller()))

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"first"
        yield b"second"
        await store.write(partial(stored.remove, accessor="a"))
        yield b"third"

    found = [item async for item in stream_auth.while_authorized(asked, pieces())]
    assert found == [b"first", b"second"]


async def allow(store: Store, rules: str) -> None:
    """Set the rules of the policy "p"."""
    await store.write(lambda tx: policies.put(tx, Policy(name="p", rules=rules)))


async def limited(store: Store, rules: str, needs: RequiredCapability, **given: Any) -> Request:
    """Return a request of a token with one policy, named "p"."""
    await allow(store, rules)
    asked = request(store, needs, caller(), **given)
    tokens = asked.parts.tokens
    issued = await tokens.issue(Token(accessor="a", policies=("p",), created_at=NOW))
    return msgspec.structs.replace(asked, token=issued.secret, caller=tokens.resolve(issued.secret))


MAY_READ = 'namespace "default" { capabilities = ["read-logs"] }'
MAY_NOT = 'namespace "default" { capabilities = ["list-jobs"] }'


async def seen(asked: Request, between: Callable[[], Awaitable[object]]) -> list[bytes]:
    """Return the pieces of a stream; `between` runs after the first one."""

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"first"
        await between()
        yield b"second"

    return [item async for item in stream_auth.while_authorized(asked, pieces())]


@pytest.mark.parametrize(
    ("before", "after", "needs"),
    [
        (MAY_READ, MAY_NOT, on_namespace("read-logs")),
        ('agent { policy = "write" }', 'agent { policy = "read" }', on_scope("agent", "write")),
    ],
)
async def test_stream_ends_when_its_reader_loses_the_capability_of_the_route(
    store: Store, monkeypatch: Any, before: str, after: str, needs: RequiredCapability
) -> None:
    monkeypatch.setattr(stream_auth, "RECHECK", 0.0)
    asked = await limited(store, before, needs)
    lose = partial(allow, store, after)
    assert await seen(asked, lose) == [b"first"]


@pytest.mark.parametrize("rules", [MAY_READ, MAY_NOT])
async def test_stream_ends_when_its_reader_loses_the_capability_on_the_object(
    store: Store, monkeypatch: Any, rules: str
) -> None:
    monkeypatch.setattr(stream_auth, "RECHECK", 0.0)
    asked = await limited(store, MAY_READ, on_object("read-logs"))
    asked.require("default")
    change = partial(allow, store, rules)
    expected = [b"first", b"second"] if rules == MAY_READ else [b"first"]
    assert await seen(asked, change) == expected


async def test_stream_of_the_last_use_of_a_token_continues_with_its_permissions(
    store: Store, monkeypatch: Any
) -> None:
    monkeypatch.setattr(stream_auth, "RECHECK", 0.0)
    asked = await limited(store, MAY_READ, on_namespace("read-logs"))
    spent = msgspec.structs.replace(asked.caller.token, uses_left=SPENT)
    asked = msgspec.structs.replace(asked, caller=Caller(spent, asked.caller.grant))
    await store.write(partial(stored.remove, accessor="a"))
    same = partial(allow, store, MAY_READ)
    assert await seen(asked, same) == [b"first", b"second"]
    lose = partial(allow, store, MAY_NOT)
    assert await seen(asked, lose) == [b"first"]


async def test_event_stream_ends_when_its_reader_loses_every_capability(
    store: Store, autojump_clock: trio.testing.MockClock
) -> None:
    asked = await limited(store, MAY_READ, KNOWN)
    stream = (await events.stream(asked)).stream
    assert stream is not None
    assert await anext(stream) == b"{}\n"
    await store.write(lambda tx: policies.remove(tx, "p"))
    autojump_clock.jump(stream_auth.RECHECK)
    with trio.fail_after(60):
        assert [line async for line in stream] == []


async def test_exec_session_ends_when_its_caller_loses_the_capability(
    store: Store, autojump_clock: trio.testing.MockClock
) -> None:
    asked = await limited(store, MAY_READ, on_object("read-logs"))
    asked.require("default")
    await allow(store, MAY_NOT)
    session = trio.sleep_forever()  # noqa: ASYNC105  # the tested function awaits it
    with pytest.raises(Denied), trio.fail_after(60):
        await websockets._while_allowed(asked, lambda: True, session)


@pytest.mark.parametrize(("wait", "is_denied"), [("900ms", False), ("10s", True)])
async def test_blocking_query_is_denied_after_its_caller_lost_the_capability(
    store: Store, autojump_clock: trio.testing.MockClock, wait: str, is_denied: bool
) -> None:
    route = next(
        route for route in ROUTES if isinstance(route, ReadRoute) and route.path == "/v1/jobs"
    )
    asked = await limited(store, MAY_NOT, route.needs, query=f"index=1000&wait={wait}")
    await allow(store, 'namespace "default" { policy = "deny" }')
    given = {"cache": ResponseCache(), "stream_limit": StreamLimit(10), "closing": trio.Event()}
    with pytest.raises(Denied) if is_denied else nullcontext():
        await blocking.answer(route, asked, random=lambda: 0.0, **given)


@pytest.mark.parametrize(("random", "seconds"), [(0.0, 160.0), (0.5, 165.0), (0.96, 169.6)])
async def test_wait_of_a_blocking_query_is_extended_by_up_to_a_sixteenth(
    store: Store, autojump_clock: trio.testing.MockClock, random: float, seconds: float
) -> None:
    route = next(
        route for route in ROUTES if isinstance(route, ReadRoute) and route.path == "/v1/jobs"
    )
    asked = await limited(store, MAY_NOT, route.needs, query="index=1000&wait=160s")
    given = {"cache": ResponseCache(), "stream_limit": StreamLimit(10), "closing": trio.Event()}
    began = trio.current_time()
    await blocking.answer(route, asked, random=lambda: random, **given)
    assert trio.current_time() - began == pytest.approx(seconds)


async def test_log_stream_ends_when_the_token_of_its_reader_expires(
    store: Store, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(stream_auth, "RECHECK", 0.0)
    cluster = Cluster(store)
    await cluster.join(node())
    await cluster.register(job("web"))
    await cluster.work()
    await cluster.run_all()
    (allocation,) = cluster.allocations("web")
    query = "task=main&type=stdout&follow=true&plain=true"
    asked = request(store, KNOWN, caller(), query=query, alloc_id=allocation.id)
    config = Settings(data_dir=tmp_path)
    asked = await shown(msgspec.structs.replace(asked, parts=parts_of(store, config)))
    file = config.alloc_dir / allocation.id / "alloc" / "logs" / "main.stdout.0"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"first")
    stream = (await logs.logs(asked)).stream
    assert stream is not None
    assert await anext(stream) == b"first"
    await store.write(partial(stored.remove, accessor="a"))
    with file.open("ab") as more:
        more.write(b"second")
    assert [item async for item in stream] == []


MANY = "\n".join(f'namespace "n{number}" {{ policy = "read" }}' for number in range(200))


@pytest.mark.parametrize("uses_left", [None, SPENT], ids=["stored", "spent"])
async def test_long_rights_of_an_open_stream_are_built_in_a_thread(
    store: Store, monkeypatch: pytest.MonkeyPatch, uses_left: int | None
) -> None:
    monkeypatch.setattr(stream_auth, "RECHECK", 0.0)
    asked = await limited(store, MAY_READ, on_namespace("read-logs"))
    token = msgspec.structs.replace(asked.caller.token, uses_left=uses_left)
    asked = msgspec.structs.replace(asked, caller=Caller(token, asked.caller.grant))
    threads, build = list[threading.Thread](), caller_cache._grant

    def noted(*given: Any) -> CapabilitySet:
        threads.append(threading.current_thread())
        return build(*given)

    monkeypatch.setattr(caller_cache, "_grant", noted)
    assert await seen(asked, partial(allow, store, f"{MAY_READ}\n{MANY}")) == [b"first", b"second"]
    assert threads
    assert threading.main_thread() not in threads


async def test_long_rights_of_a_token_for_secrets_are_built_in_a_thread(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = await limited(store, MANY, on_namespace("submit-job"))
    await allow(store, f"{MAY_READ}\n{MANY}")
    threads, build = list[threading.Thread](), caller_cache._grant

    def noted(*given: Any) -> CapabilitySet:
        threads.append(threading.current_thread())
        return build(*given)

    monkeypatch.setattr(caller_cache, "_grant", noted)
    await jobs.registration_context(asked, asked.token)
    assert threads
    assert threading.main_thread() not in threads
