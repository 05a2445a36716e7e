"""Names of allocations, `<job>.<group>[<index>]`: which indexes are in use, and which are next."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter

from storage.records.allocation import Allocation


class AllocNameIndex:
    """The allocation names of one group; the lowest free index is assigned first."""

    def __init__(
        self,
        job_id: str,
        group: str,
        allocations: Iterable[Allocation],
        ranges: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Initialize with the allocations whose names are in use.

        `ranges` are other indexes in use, as (first, last) in ascending order.
        """
        self._stem = f"{job_id}.{group}"
        self._taken = Counter(allocation.index for allocation in allocations)
        self._ranges = ranges
        self._lowest = 0
        self._only: int | None = None

    def restrict(self, bits: int) -> int:
        """Permit only the indexes that are set bits of `bits`; return how many of them are free."""
        self._only = bits
        for first, last in self._ranges:
            bits &= ~(((1 << (last - first + 1)) - 1) << first)
        for number, times in self._taken.items():
            if times and number >= 0:
                bits &= ~(1 << number)
        return bits.bit_count()

    def _end_of_range(self, number: int) -> int | None:
        """Return the last index of the range that contains this index, or None."""
        index = bisect_right(self._ranges, number, key=itemgetter(0)) - 1
        return self._ranges[index][1] if index >= 0 and number <= self._ranges[index][1] else None

    def next(self) -> str:
        """Return the lowest free name and reserve it."""
        while True:
            if (last := self._end_of_range(self._lowest)) is not None:
                self._lowest = last + 1
            elif self._taken[self._lowest] or self._is_barred(self._lowest):
                self._lowest += 1
            else:
                break
        self._taken[self._lowest] = 1
        return self._name(self._lowest)

    def _is_barred(self, number: int) -> bool:
        bits = self._only
        return bits is not None and bits >> number > 0 and not bits >> number & 1

    def _name(self, number: int) -> str:
        # No format string: a job or group may have any characters in its name.
        return f"{self._stem}[{number}]"

    def canaries(
        self, count: int, *, existing: Collection[Allocation], to_replace: Iterable[Allocation]
    ) -> list[str]:
        """Return names for new canaries, first the names of allocations that they will replace."""
        used = {allocation.index for allocation in existing}
        numbers = sorted({allocation.index for allocation in to_replace} - used)[:count]
        for number in numbers:
            self._taken[number] += 1
        names = [self._name(number) for number in numbers]
        return names + [self.next() for _ in range(count - len(names))]

    def for_replacement(self, allocation: Allocation) -> str:
        """Return the name for a replacement of an allocation.

        This is the name of the allocation, unless another allocation has the same name.
        """
        if self._taken[allocation.index] <= 1 and self._end_of_range(allocation.index) is None:
            return allocation.name
        self._taken[allocation.index] -= 1
        return self.next()
