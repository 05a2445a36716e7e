"""Freezes: periods in which no runs or steps begin, or in which jobs may not be changed."""

from enum import StrEnum

from storage.records.base import Record

EVERYTHING = "*"  # as namespace
FREEZE_REASON = "freeze: "  # prefix of the reason of a step that a freeze holds
MAY_OVERRIDE = "override-freeze"  # capability in a namespace
MOST_OPEN = 100  # freezes of a namespace that have not ended
LONGEST_REASON = 500  # characters
LONGEST_PATTERN = 256


class Strength(StrEnum):
    """The effect of a freeze."""

    BEGIN = "begin"  # no run begins
    STEPS = "steps"  # also no step of a run that has begun
    CHANGES = "changes"  # jobs are not changed; runs begin as usual


class Freeze(Record, frozen=True, kw_only=True):
    """A freeze of a namespace, or of all namespaces (`*`).

    `jobs` is a pattern of job IDs, in which `*` matches any string. `queue` is the name of a queue
    of runs. If either is empty, it does not restrict the freeze. Times are in nanoseconds since the
    epoch. `until` is the planned end, 0 if none is set. `ended` is the actual end, 0 until then.
    `person` created the freeze, and `ended_by` ended it; both may be empty.
    """

    id: str
    namespace: str
    jobs: str = ""
    queue: str = ""
    strength: Strength = Strength.BEGIN
    reason: str = ""
    person: str = ""
    begin: int = 0
    until: int = 0
    ended: int = 0
    ended_by: str = ""
    create_index: int = 0
    modify_index: int = 0

    def covers(self, job_id: str, parent_id: str, queue: str) -> bool:
        """Return whether the freeze applies to a job of its namespace.

        The pattern may match the ID of the job or of its parent. `queue` is the queue of the job's
        runs.
        """
        if self.queue and self.queue != queue:
            return False
        return not self.jobs or any(
            matches(self.jobs, name) for name in (job_id, parent_id) if name
        )

    def holds_at(self, time: int) -> bool:
        """Return whether the freeze is active at a time, which may be past or future."""
        return self.begin <= time and (not self.end or time < self.end)

    @property
    def end(self) -> int:
        """Return the time at which the freeze ends or has ended; 0 if no end is set."""
        return self.ended or self.until


class FreezeHold(Record, frozen=True, kw_only=True):
    """The freeze that holds a job; `until` is the end of the freeze, 0 if it is unknown."""

    id: str
    strength: Strength
    reason: str
    until: int


def matches(pattern: str, text: str) -> bool:
    """Return whether a string matches a pattern, in which `*` matches any string."""
    first, *parts = pattern.split("*")
    if not parts:
        return pattern == text
    if not text.startswith(first):
        return False
    offset = len(first)
    for part in parts[:-1]:
        start_of_match = text.find(part, offset)
        if start_of_match < 0:
            return False
        offset = start_of_match + len(part)
    return len(text) - offset >= len(parts[-1]) and text.endswith(parts[-1])
