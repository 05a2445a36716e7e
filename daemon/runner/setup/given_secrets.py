"""The secrets that one task received, for masking. They are stored before the task can see them."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

from daemon.text.masking import TaskSecrets


class SecretKeeper(Protocol):
    """Stores the secrets of tasks, encrypted."""

    async def recall(self, alloc_id: str) -> list[str]:
        """Return the secrets that the tasks of an allocation received, oldest first."""
        ...

    async def keep(self, alloc_id: str, values: Sequence[str]) -> None:
        """Store secrets. Raises `Refused`."""
        ...

    async def tidy(self, has_logs: Callable[[str], Awaitable[bool]]) -> None:
        """Delete the secrets of allocations without a directory and without retained logs."""
        ...


class GivenSecrets:
    """The secrets of one task. Without a keeper, they last as long as the daemon."""

    def __init__(self, keeper: SecretKeeper | None = None, alloc_id: str = "") -> None:
        self._keeper, self._alloc_id = keeper, alloc_id
        self._known = TaskSecrets()
        self._unstored: list[str] = []

    def add(self, secret: str) -> None:
        """Add a secret that the task will receive, or has received."""
        if secret and self._known.add(secret) and self._keeper is not None:
            self._unstored.append(secret)

    async def store(self) -> None:
        """Store new secrets; call it before a task receives them. Raises `Refused`."""
        if self._keeper is not None and self._unstored:
            values, self._unstored = self._unstored, []
            try:
                await self._keeper.keep(self._alloc_id, values)
            except BaseException:
                self._unstored = [*values, *self._unstored]
                raise

    async def recall(self) -> None:
        """Restore the secrets that the task received from an earlier daemon."""
        if self._keeper is not None:
            for secret in await self._keeper.recall(self._alloc_id):
                self._known.add(secret)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the secrets as bytes."""
        return iter(self._known)
