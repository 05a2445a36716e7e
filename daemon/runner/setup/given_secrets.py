"""The secrets of one task, for masking its output. They are stored before the task gets them."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Protocol

from daemon.text.masking import TaskSecrets


class SecretKeeper(Protocol):
    """Stores the secrets of tasks, encrypted."""

    async def recall(self, alloc_id: str) -> list[str]:
        """Return the secrets that the tasks of an allocation received, oldest first.

        Raises `Refused`.
        """
        ...

    async def store(self, alloc_id: str, values: Sequence[str]) -> None:
        """Store secrets. Raises `Refused`."""
        ...

    async def of_job(self, namespace: str, job_id: str) -> list[str]:
        """Return the values of the sensitive variables of a job, oldest first."""
        ...

    def record_in_use(self, alloc_id: str, task: str, values: Collection[str]) -> None:
        """Record the secrets that a task uses now. `store` drops other secrets first."""
        ...

    async def tidy(self, has_logs: Callable[[str], Awaitable[bool]]) -> None:
        """Delete the secrets of allocations without a directory and without retained logs."""
        ...


_JOB_FILE = "the job file"  # a source
_MOST_SOURCES = 1000  # sources of one task; a template can compute the paths that it reads


class GivenSecrets:
    """The secrets of one task. Without a keeper, the secrets are only in memory."""

    def __init__(
        self, keeper: SecretKeeper | None = None, alloc_id: str = "", task: str = ""
    ) -> None:
        self._keeper, self._alloc_id, self._task = keeper, alloc_id, task
        self._secrets = TaskSecrets()
        self._in_use: dict[str, dict[str, None]] = {}  # by source; the latest source is last
        self._recalled: frozenset[str] = frozenset()  # stored secrets, used now or earlier
        self._has_recalled = False
        self._unstored: list[str] = []

    def add(self, source: str, *secrets: str) -> None:
        """Add the secrets that the task receives from a source.

        They replace the secrets that this source gave before. The replaced secrets are no longer in
        use, but they are still masked.
        """
        before = self._in_use.pop(source, {})
        present = dict.fromkeys(filter(None, secrets))
        for secret in present:
            self._secrets.add(secret)
            # The store may have dropped a secret that was not in use.
            if secret not in before and secret not in self._recalled:
                self._unstored.append(secret)
        self._in_use[source] = present
        if len(self._in_use) > _MOST_SOURCES:
            del self._in_use[next(iter(self._in_use))]

    async def add_of_job(self, namespace: str, job_id: str) -> None:
        """Add and store the sensitive variables of the job file. Raises `Refused`."""
        if self._keeper is None:
            return
        if values := await self._keeper.of_job(namespace, job_id):
            self.add(_JOB_FILE, *values)
            await self.store()

    async def store(self) -> None:
        """Store the new secrets. Call this before the task receives them. Raises `Refused`."""
        if self._in_use and not self._has_recalled:
            await self.recall()
        in_use = [secret for present in self._in_use.values() for secret in present]
        self._secrets.drop_oldest(in_use)
        self._recalled = frozenset()
        if self._keeper is None:
            self._unstored.clear()
            return
        self._keeper.record_in_use(self._alloc_id, self._task, in_use)
        if self._unstored:
            values, self._unstored = self._unstored, []
            try:
                await self._keeper.store(self._alloc_id, values)
            except BaseException:  # also when cancelled: these secrets must still be stored
                self._unstored = [*values, *self._unstored]
                raise

    async def recall(self) -> None:
        """Restore the secrets that the task received from an earlier daemon. Raises `Refused`.

        An earlier daemon may have started the task without storing that it did. So each runner of
        a task restores them before it stores its own.
        """
        if self._keeper is not None:
            stored = await self._keeper.recall(self._alloc_id)
            self._secrets = TaskSecrets([*stored, *self._secrets.values])
            self._recalled = frozenset(stored)
            self._unstored = [one for one in self._unstored if one not in self._recalled]
        self._has_recalled = True

    def __iter__(self) -> Iterator[bytes]:
        """Yield the secrets as bytes."""
        return iter(self._secrets)
