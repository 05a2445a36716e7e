"""Counters of the daemon's visits to its points, and the next kill; they survive the daemon."""

import mmap
import struct
from pathlib import Path

from tests.crash.points import points

BEFORE, AFTER = SIDES = 0, 1
_HEAD = struct.Struct("iii")  # the point, the side, and the remaining visits; a point of -1: none
_ONE = struct.Struct("I")


class PointCounters:
    """The file of counters, shared by the test and the daemon."""

    def __init__(self, path: Path) -> None:
        self.names = _names(path.with_suffix(".names"))
        self._number = {name: number for number, name in enumerate(self.names)}
        size = _HEAD.size + 2 * _ONE.size * len(self.names)
        if not path.exists():
            path.write_bytes(_HEAD.pack(-1, 0, 0) + bytes(size - _HEAD.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)

    def arm(self, name: str, side: int, times: int = 1) -> None:
        """Schedule a kill after this many further visits to a side of a point."""
        _HEAD.pack_into(self._memory, 0, self._number[name], side, times)

    def disarm(self) -> None:
        """Cancel the scheduled kill."""
        _HEAD.pack_into(self._memory, 0, -1, 0, 0)

    @property
    def has_fired(self) -> bool:
        """Return whether the daemon has reached the scheduled kill."""
        armed, _, times = _HEAD.unpack_from(self._memory, 0)
        return bool(armed >= 0 and times <= 0)

    def counts(self) -> dict[tuple[str, int], int]:
        """Return the visits to each side of each point."""
        return {(name, side): self.hits(name, side) for name in self.names for side in SIDES}

    def hits(self, name: str, side: int) -> int:
        """Return the visits to a side of a point."""
        return int(_ONE.unpack_from(self._memory, self._place(self._number[name], side))[0])

    def note(self, name: str, side: int) -> bool:
        """Count a visit to a side of a point; return whether the process dies here."""
        number = self._number.get(name)
        if number is None:
            return False
        place = self._place(number, side)
        _ONE.pack_into(self._memory, place, _ONE.unpack_from(self._memory, place)[0] + 1)
        armed, wanted, times = _HEAD.unpack_from(self._memory, 0)
        if (armed, wanted) != (number, side):
            return False
        _HEAD.pack_into(self._memory, 0, armed, wanted, times - 1)
        return bool(times == 1)

    @staticmethod
    def _place(number: int, side: int) -> int:
        return _HEAD.size + _ONE.size * (2 * number + side)


def _names(path: Path) -> tuple[str, ...]:
    """Return the names of all points, computed once and shared with all users of the file."""
    if not path.exists():
        path.write_text("\n".join(points()))
    return tuple(path.read_text().split("\n"))
