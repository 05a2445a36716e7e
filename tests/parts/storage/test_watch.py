"""Watches: a change of a watched topic wakes the waiter, other changes do not."""

from collections.abc import Iterable

import pytest
import trio
import trio.testing

from storage import watch as module
from storage.watch import TopicSet, Watch


async def woken(topics: TopicSet, watched: tuple[str, ...], published: str) -> bool:
    with topics.watch(watched) as change:
        topics.publish([published])
        with trio.move_on_after(1):
            await change.wait()
            return True
    return False


@pytest.mark.parametrize(
    ("watched", "published"),
    [
        (("jobs/default/web",), "jobs/default/web"),
        (("jobs/default/",), "jobs/default/web"),
        (("jobs/default/we*",), "jobs/default/web"),
        (("evals/1", "jobs/default/web"), "jobs/default/web"),
    ],
)
async def test_a_watcher_is_woken_by_its_topic(
    watched: tuple[str, ...], published: str, autojump_clock: trio.testing.MockClock
) -> None:
    assert await woken(TopicSet(), watched, published)


@pytest.mark.parametrize(
    ("watched", "published"),
    [
        (("jobs/default/web",), "jobs/default/web2"),
        (("jobs/default/web",), "jobs/default"),
        (("jobs/default/we*",), "jobs/default/api"),
        (("jobs/other/",), "jobs/default/web"),
    ],
)
async def test_watcher_is_not_woken_by_other_topics(
    watched: tuple[str, ...], published: str, autojump_clock: trio.testing.MockClock
) -> None:
    assert not await woken(TopicSet(), watched, published)


async def test_change_between_subscription_and_wait_is_not_missed() -> None:
    topics = TopicSet()
    with topics.watch(["a"]) as change:
        topics.publish(["a"])
        await change.wait()


async def test_all_watchers_of_a_topic_are_woken(autojump_clock: trio.testing.MockClock) -> None:
    topics, awake = TopicSet(), []

    async def watcher(number: int) -> None:
        with topics.watch(["a", "b"]) as change:
            await change.wait()
            awake.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(1000):
            nursery.start_soon(watcher, number)
        await trio.testing.wait_all_tasks_blocked()
        topics.publish(["b"])
    assert len(awake) == 1000


async def test_unwatched_topics_use_no_memory() -> None:
    topics = TopicSet()
    with topics.watch(["a", "b/"]):
        pass
    with topics.watch(["c"]) as change:
        topics.publish(["c"])
        await change.wait()
    assert (topics._exact, topics._prefixes) == ({}, {})


@pytest.mark.parametrize("few", [0, 20_000])
async def test_topics_with_a_common_prefix_wake_their_watchers_once(
    monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """The plan has thousands of allocations, and thousands of watchers wait for any of them."""
    monkeypatch.setattr(module, "_FEW", few)
    topics, woken = TopicSet(), []
    wake = module._wake

    def counted(watches: Iterable[Watch]) -> None:
        woken.extend(watches)
        wake(watches)

    monkeypatch.setattr(module, "_wake", counted)
    with topics.watch(["a/"]) as first, topics.watch(["a/b*"]) as second:
        topics.publish(f"a/{number}" for number in range(1000))
        assert woken == [first]
        topics.publish(["a/bc", "a/b", "z"])
        assert set(woken[1:]) == {first, second}
        assert len(woken) == 3
        topics.publish(["b/b"])
        assert len(woken) == 3
    assert not topics._lengths
