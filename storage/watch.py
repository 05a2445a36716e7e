"""Who waits for what: topics, and the waking of those who watch them.

A topic is a path, `jobs/default/web`; one watches a topic, or, with a trailing slash or a
trailing `*`, all topics that begin like it. Nothing is kept about topics nobody watches.
"""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

import trio


class Topics:
    """The topics that are being watched, each with its watches."""

    def __init__(self) -> None:
        self.published = 0  # how often anything was
        self._exact: dict[str, set[Watch]] = {}
        self._prefixes: dict[str, set[Watch]] = {}

    def watch(self, topics: Iterable[str]) -> "Watch":
        """Return a watch on these topics, to be used in a `with` block."""
        return Watch(self, tuple(topics))

    def publish(self, topics: Iterable[str]) -> None:
        """Wake everyone who watches one of these topics, or the beginning of one."""
        self.published += 1
        beginnings = tuple(self._prefixes)
        for topic in topics:
            _wake(self._exact.get(topic, ()))
            if topic.startswith(beginnings):  # few do: one look for all
                for prefix, watches in self._prefixes.items():
                    if topic.startswith(prefix):
                        _wake(watches)

    def wake_all(self) -> None:
        """Wake everyone, whatever they watch."""
        for table in (self._exact, self._prefixes):
            for watches in table.values():
                _wake(watches)

    def _table(self, topic: str) -> tuple[dict[str, set["Watch"]], str]:
        if topic.endswith(("/", "*")):
            return self._prefixes, topic.removesuffix("*")
        return self._exact, topic

    def _join(self, topic: str, watch: "Watch") -> None:
        table, key = self._table(topic)
        table.setdefault(key, set()).add(watch)

    def _leave(self, topic: str, watch: "Watch") -> None:
        table, key = self._table(topic)
        if watches := table.get(key):
            watches.discard(watch)
            if not watches:
                del table[key]


def _wake(watches: Iterable["Watch"]) -> None:
    for watch in watches:
        watch.changed.set()


class Watch:
    """A registered interest. Enter it first, then read, then wait: so no change is missed."""

    def __init__(self, topics: Topics, names: tuple[str, ...]) -> None:
        self._topics, self._names = topics, names
        self.changed = trio.Event()

    def __enter__(self) -> Self:
        for name in self._names:
            self._topics._join(name, self)  # noqa: SLF001  # one module
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in self._names:
            self._topics._leave(name, self)  # noqa: SLF001  # one module

    async def wait(self) -> None:
        """Return when one of the topics has been published since the watch was entered."""
        await self.changed.wait()
