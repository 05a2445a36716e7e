"""Topics, and the watchers that wait for their changes.

A topic is a path, such as `jobs/default/web`. A watch is on a topic, or on a prefix that ends with
a slash or `*`. Topics without watchers use no memory.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

import trio

_FEW = 20_000  # topics whose prefixes are computed in 2 ms


class TopicSet:
    """The watched topics with their watches."""

    def __init__(self) -> None:
        self.published = 0  # number of publications
        self._exact: dict[str, set[Watch]] = {}
        self._prefixes: dict[str, set[Watch]] = {}
        self._lengths: Counter[int] = Counter()  # lengths of the watched prefixes

    def watch(self, topics: Iterable[str]) -> "Watch":
        """Return a watch on these topics, for a `with` block."""
        return Watch(self, tuple(topics))

    def publish(self, topics: Iterable[str]) -> None:
        """Wake all watchers of these topics or of their prefixes.

        This is fast even if a plan changes thousands of topics, or thousands of topics are watched.
        """
        self.published += 1
        named = dict.fromkeys(topics)
        for topic in self._exact.keys() & named.keys():
            _wake(self._exact[topic])
        for prefix in self._watched_prefixes(named):
            _wake(self._prefixes[prefix])

    def _watched_prefixes(self, topics: Mapping[str, None]) -> list[str]:
        """Return the watched prefixes that match these topics."""
        if len(self._lengths) * len(topics) <= _FEW + len(self._prefixes):
            cut = {topic[:length] for length in self._lengths for topic in topics}
            return list(self._prefixes.keys() & cut)
        ordered = [*sorted(topics), ""]
        return [
            prefix
            for prefix in self._prefixes
            if ordered[bisect_left(ordered, prefix, hi=len(topics))].startswith(prefix)
        ]

    def wake_all(self) -> None:
        """Wake all watchers."""
        for table in (self._exact, self._prefixes):
            for watches in table.values():
                _wake(watches)

    def _table(self, topic: str) -> tuple[dict[str, set["Watch"]], str]:
        if topic.endswith(("/", "*")):
            return self._prefixes, topic.removesuffix("*")
        return self._exact, topic

    def _join(self, topic: str, watch: "Watch") -> None:
        table, key = self._table(topic)
        if table is self._prefixes and key not in table:
            self._lengths[len(key)] += 1
        table.setdefault(key, set()).add(watch)

    def _unsubscribe(self, topic: str, watch: "Watch") -> None:
        table, key = self._table(topic)
        if watches := table.get(key):
            watches.discard(watch)
            if not watches:
                del table[key]
                if table is self._prefixes:
                    self._lengths[len(key)] -= 1
                    if not self._lengths[len(key)]:
                        del self._lengths[len(key)]


def _wake(watches: Iterable["Watch"]) -> None:
    for watch in watches:
        watch.wake()


class Watch:
    """A watch. Enter it, then read, then wait, so that no change is missed."""

    def __init__(self, topics: TopicSet, names: tuple[str, ...]) -> None:
        self._topics, self._names = topics, names
        self._changed = trio.Event()
        # Called at the first change. The caller of `publish` runs it, so it must not fail.
        self.on_change: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        for name in self._names:
            self._topics._join(name, self)  # noqa: SLF001  # private to this module
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in self._names:
            self._topics._unsubscribe(name, self)  # noqa: SLF001  # private to this module

    @property
    def has_changed(self) -> bool:
        """Return whether a topic was published after the watch was entered."""
        return self._changed.is_set()

    def wake(self) -> None:
        """End the wait for a change."""
        if not self._changed.is_set():
            self._changed.set()
            if self.on_change is not None:
                self.on_change()

    async def wait(self) -> None:
        """Wait until a topic is published.

        Return immediately if a topic was published after the watch was entered.
        """
        await self._changed.wait()
