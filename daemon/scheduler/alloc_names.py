"""Names of allocations, `<job>.<group>[<index>]`: which indexes are in use, and which are next."""

from collections import Counter
from collections.abc import Collection, Iterable

from storage.records.allocation import Allocation


class AllocNameIndex:
    """The names of one group; the lowest free index comes first."""

    def __init__(self, job_id: str, group: str, taken: Iterable[Allocation]) -> None:
        """Take the group and the allocations whose names are in use."""
        self._stem = f"{job_id}.{group}"
        self._taken = Counter(allocation.index for allocation in taken)
        self._lowest = 0

    def next(self) -> str:
        """Return the lowest free name and reserve it."""
        while self._taken[self._lowest]:
            self._lowest += 1
        self._taken[self._lowest] = 1
        return self._name(self._lowest)

    def _name(self, number: int) -> str:
        # No format string: a job or group may have any characters in its name.
        return f"{self._stem}[{number}]"

    def canaries(
        self, count: int, *, existing: Collection[Allocation], to_replace: Iterable[Allocation]
    ) -> list[str]:
        """Return names for new canaries, first those of allocations that they will replace."""
        used = {allocation.index for allocation in existing}
        numbers = sorted({allocation.index for allocation in to_replace} - used)[:count]
        for number in numbers:
            self._taken[number] += 1
        names = [self._name(number) for number in numbers]
        return names + [self.next() for _ in range(count - len(names))]

    def for_replacement(self, allocation: Allocation) -> str:
        """Return the name of a replacement: the same, unless another allocation also has it."""
        if self._taken[allocation.index] <= 1:
            return allocation.name
        self._taken[allocation.index] -= 1
        return self.next()
