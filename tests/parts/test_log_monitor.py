"""The log of the daemon, streamed to a remote client."""

import json
import logging
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from daemon.log.daemon_log import _WAITING, LogMonitor

log = logging.getLogger("steward.test")


@pytest.fixture(autouse=True)
def _usual_level() -> Iterator[None]:
    usual = logging.getLogger("steward").level
    logging.getLogger("steward").setLevel(logging.INFO)
    yield
    logging.getLogger("steward").setLevel(usual)


async def lines_of(level: str, count: int, *, as_json: bool = False) -> list[str]:
    with LogMonitor().reading(level, as_json=as_json) as lines:
        return [await anext(lines) for _ in range(count)]


async def said(level: str, *, as_json: bool = False, count: int = 1) -> list[str]:
    """Log a debug line and a warning; return the lines that a reader of this level receives."""
    found: list[str] = []

    async def read() -> None:
        found.extend(await lines_of(level, count, as_json=as_json))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        log.debug("a trifle")
        log.warning("a worry")
    return found


async def test_reader_can_have_a_lower_level_than_the_daemon_log() -> None:
    first, second = await said("debug", count=2)
    assert first.endswith("test: a trifle")
    assert second.endswith("test: a worry")


async def test_lines_name_their_level_as_nomad_does() -> None:
    levels = [line.split(" ", 1)[1].partition(" test")[0] for line in await said("debug", count=2)]
    assert levels == ["[DEBUG]", "[WARN] "]


async def test_reader_can_filter_by_level() -> None:
    (only,) = await said("info")
    assert only.endswith("test: a worry")


async def test_lines_can_be_objects() -> None:
    (only,) = await said("info", as_json=True)
    assert json.loads(only)["message"] == "a worry"


async def test_log_level_is_restored_after_the_last_reader() -> None:
    await said("debug", count=2)
    assert logging.getLogger("steward").level == logging.INFO


async def test_a_slow_reader_is_notified_of_missed_lines() -> None:
    found: list[str] = []

    async def read() -> None:
        found.extend(await lines_of("info", 2))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(_WAITING + 5):
            log.info("line %d", number)
    assert found[1].startswith("4 lines were dropped")


async def test_a_line_of_another_thread_is_shown() -> None:
    found: list[str] = []

    async def read() -> None:
        found.extend(await lines_of("info", 1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await trio.to_thread.run_sync(log.info, "from a thread")
    assert found[0].endswith("from a thread")
