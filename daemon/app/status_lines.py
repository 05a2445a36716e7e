"""The most recently encoded status lines of jobs, each with the stamp of the data that it shows.

A stamp is a value that differs after each change of this data (`storage/queries/job_stamps.py`).
Open pages of the web interface read the same jobs again after each change, and few of the jobs have
changed. A line is valid while the stamp of its job is the same. Each reader takes the stamp from
its own snapshot, so it never gets a line that is older than this snapshot.
"""

from storage.queries.job_stamps import Stamp

MOST = 2000  # lines that are cached
LONGEST = 4096  # bytes of a line; a longer line has many allocations, and changes often

Key = tuple[str, str, bool, bool, bool]  # the job's namespace and ID, `states`, `strip`, `counts`


class StatusLines:
    """The lines of one daemon. Threads may use them at the same time."""

    def __init__(self) -> None:
        self._lines: dict[Key, tuple[Stamp, bytes]] = {}

    def find(self, key: Key, stamp: Stamp) -> bytes | None:
        """Return the line of a job with this stamp, or None."""
        stamp_and_line = self._lines.get(key)
        return (
            stamp_and_line[1] if stamp_and_line is not None and stamp_and_line[0] == stamp else None
        )

    def keep(self, key: Key, stamp: Stamp, line: bytes) -> None:
        """Cache a line, unless it is long. If there are too many lines, drop all of them first."""
        if len(line) > LONGEST:
            self._lines.pop(key, None)
            return
        if len(self._lines) >= MOST and key not in self._lines:
            self._lines.clear()
        self._lines[key] = (stamp, line)
