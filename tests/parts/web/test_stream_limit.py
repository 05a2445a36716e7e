"""The limit on open streams, and the end of endless streams at the shutdown."""

from collections.abc import AsyncGenerator

import pytest
import trio
import trio.testing

from daemon.web import stream_limit
from daemon.web.stream_limit import StreamLimit
from storage.errors import TooOften


@pytest.mark.parametrize(
    ("connections", "most", "limit"), [(8, 100, 6), (9, 100, 6), (100, 5, 5), (1, 100, 0)]
)
def test_streams_leave_a_quarter_of_the_connections(
    monkeypatch: pytest.MonkeyPatch, connections: int, most: int, limit: int
) -> None:
    monkeypatch.setattr(stream_limit, "MOST", most)
    streams = StreamLimit(connections)
    blocks = [streams.reserve() for _ in range(limit)]
    for block in blocks:
        block.__enter__()
    with pytest.raises(TooOften, match=f"limit of {limit} open streams"):
        streams.check()
    with pytest.raises(TooOften), streams.reserve():
        pass
    if blocks:
        blocks[0].__exit__(None, None, None)
        streams.check()


class Chunks:
    """A stream with one chunk, which then waits indefinitely."""

    def __init__(self) -> None:
        self.is_closed = False

    async def read(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b"a"
            await trio.sleep_forever()
        finally:
            self.is_closed = True


@pytest.mark.parametrize("is_endless", [True, False])
async def test_only_endless_streams_end_at_the_shutdown(is_endless: bool) -> None:
    streams, chunks, received = StreamLimit(2), Chunks(), list[bytes]()
    ended = trio.Event()

    async def read() -> None:
        async for chunk in streams.count(chunks.read(), is_endless=is_endless):
            received.append(chunk)
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert received == [b"a"]
        with pytest.raises(TooOften):
            streams.count(chunks.read())
        streams.close()
        await trio.testing.wait_all_tasks_blocked()
        assert (ended.is_set(), chunks.is_closed) == (is_endless, is_endless)
        nursery.cancel_scope.cancel()
    streams.check()  # the stream has ended


async def test_endless_stream_that_begins_during_the_shutdown_is_empty() -> None:
    streams = StreamLimit(100)
    streams.close()
    found = [chunk async for chunk in streams.count(Chunks().read(), is_endless=True)]
    assert found == []
