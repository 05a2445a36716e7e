"""Answers without an end: they have one when their reader's token has."""

from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from daemon.acl.check import ANYONE
from daemon.api.cluster import logs
from daemon.config.settings import Settings
from daemon.web import stream_auth
from daemon.web.request import Request
from storage.queries import tokens as stored
from storage.records.acl import Token
from storage.store import Store
from tests.parts.api.asking import caller, parts_of, request
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, job
from tests.unit.scheduler.world import node


async def shown(asked: Request) -> Request:
    """Return a request with a separate token named "a"."""
    tokens = asked.parts.tokens
    issued = await tokens.issue(Token(accessor="a", policies=("root",), created_at=NOW))
    return msgspec.structs.replace(asked, token=issued.secret, caller=tokens.resolve(issued.secret))


async def test_what_is_read_on_ends_with_the_token(store: Store, monkeypatch: Any) -> None:
    monkeypatch.setattr(stream_auth, "RECHECK", 0.0)
    asked = await shown(request(store, ANYONE, caller()))

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"first"
        yield b"second"
        await store.write(partial(stored.remove, accessor="a"))
        yield b"third"

    found = [one async for one in stream_auth.while_authorized(asked, pieces())]
    assert found == [b"first", b"second"]


async def test_a_log_is_followed_no_longer_than_its_readers_token_lives(
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
    asked = request(store, ANYONE, caller(), query=query, alloc_id=allocation.id)
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
    assert [one async for one in stream] == []
