"""A ledger outside the daemon: each accepted run must have happened once.

The ledger has three independent sources. Each short task appends a line to a file. A client records
a run only after the daemon has accepted it. A reader of the event stream records the restarts and
ends that the daemon declares. This module computes the slots of periodic jobs itself.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import msgspec

EVERY = 4  # minutes of local time between two slots
SPEC = f"1-59/{EVERY} * * * *"
ZONES = ("Asia/Kathmandu", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Chatham")
_NUMBER = re.compile(r"\[(\d{1,9})\]$")
_SLOT = re.compile(r"^(.{1,200})/periodic-(\d{1,12})$")
_MARGIN = 10  # seconds; a slot so close to the start or end of the load may have run or not


class Run(NamedTuple):
    """One element of one group: the unit that must run exactly once."""

    job: str
    group: str
    number: int


class _TaskEvent(msgspec.Struct, rename="pascal"):
    display_message: str = ""


class _TaskState(msgspec.Struct, rename="pascal"):
    restarts: int = 0
    events: list[_TaskEvent] | None = None


class _Allocation(msgspec.Struct, rename="pascal", kw_only=True):
    """An allocation in an event. An event about a purged allocation has only its identifiers."""

    name: str = ""
    task_group: str = ""
    client_status: str = ""
    task_states: dict[str, _TaskState] | None = None
    id: str = msgspec.field(name="ID")
    job_id: str = msgspec.field(name="JobID")


class _Payload(msgspec.Struct, rename="pascal"):
    allocation: _Allocation | None = None


class _Event(msgspec.Struct, rename="pascal"):
    topic: str
    payload: _Payload | None = None


class _Line(msgspec.Struct, rename="pascal"):
    index: int = 0
    events: list[_Event] = []


class Declared(msgspec.Struct):
    """The newest state of an allocation in the event stream.

    `reasons` has the messages of its task events, unless it completed without a restart.
    """

    run: Run
    status: str
    restarts: int
    reasons: list[str]


def _declared(allocation: _Allocation) -> Declared:
    number = _NUMBER.search(allocation.name)
    run = Run(allocation.job_id, allocation.task_group, int(number[1]) if number else 0)
    states = (allocation.task_states or {}).values()
    restarts = sum(state.restarts for state in states)
    is_usual = allocation.client_status == "complete" and not restarts
    events = [event for state in states for event in state.events or ()]
    reasons = [] if is_usual else [event.display_message for event in events]
    return Declared(run, allocation.client_status, restarts, reasons)


class Ledger:
    """Accepted runs, lines of tasks, and declarations of the daemon."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "ledger"
        self.path.touch()
        self.accepted = dict[Run, str]()  # the kind of each run
        self.declared = dict[str, Declared]()  # by the ID of the allocation
        self.gaps = self.purged = 0
        self.index = 1  # the index of the next event
        self.zones = dict[str, str]()  # the time zones of periodic jobs
        self.began = self.ended = 0.0

    @property
    def script(self) -> str:
        """Return the shell command by which a task appends its line in a single write."""
        return (
            'echo "$NOMAD_JOB_ID $NOMAD_GROUP_NAME $NOMAD_ALLOC_INDEX $NOMAD_ALLOC_ID"'
            f" >>{self.path}"
        )

    def accept(self, kind: str, job: str, group: str = "g", count: int = 1) -> None:
        """Record that the daemon has accepted a job or a step with this many elements."""
        self.accepted |= {Run(job, group, index): kind for index in range(count)}

    def hear(self, line: bytes) -> None:
        """Record a line of the event stream."""
        heard = msgspec.json.decode(line, type=_Line)
        self.index = max(self.index, heard.index + 1)
        for event in heard.events:
            self.gaps += event.topic == "Gap"
            if not event.payload or not (allocation := event.payload.allocation):
                continue
            if allocation.name:
                self.declared[allocation.id] = _declared(allocation)
            else:
                self.purged += 1

    def slots(self) -> Iterator[Run]:
        """Yield the runs of all slots of each periodic job, from its registration to its end."""
        first, last = int(self.began) + _MARGIN, int(self.ended) - _MARGIN
        for job, name in self.zones.items():
            zone = ZoneInfo(name)
            for time in range(-(-first // 60) * 60, last, 60):
                if datetime.fromtimestamp(time, zone).minute % EVERY == 1:
                    yield Run(f"{job}/periodic-{time}", "g", 0)

    def lines(self) -> dict[Run, Counter[str]]:
        """Return the number of lines of each allocation, for each run."""
        lines_by_run = defaultdict[Run, Counter[str]](Counter)
        for line in self.path.read_text().splitlines():
            job, group, index, allocation = line.split()
            lines_by_run[Run(job, group, int(index))][allocation] += 1
        return lines_by_run

    def _is_slot(self, run: Run) -> bool:
        """Return whether a run belongs to a slot of a periodic job.

        A slot counts even if it is up to `_MARGIN` seconds before the start of the load or after
        its end.
        """
        match = _SLOT.match(run.job)
        if not match or match[1] not in self.zones:
            return False
        time = int(match[2])
        early, late = self.began - _MARGIN, self.ended + _MARGIN
        local = datetime.fromtimestamp(time, ZoneInfo(self.zones[match[1]]))
        return early <= time <= late and time % 60 == 0 and local.minute % EVERY == 1

    def missing(self) -> set[Run]:
        """Return the accepted or due runs that have no line."""
        return self._due() - self.lines().keys()

    def _due(self) -> set[Run]:
        return self.accepted.keys() | set(self.slots())

    def verdict(self) -> list[str]:
        """Print the totals; return a description of each deviation."""
        lines, due = self.lines(), self._due()
        by_run = defaultdict[Run, list[str]](list)
        for allocation, declared in self.declared.items():
            by_run[declared.run].append(allocation)
        wrong, explained = list[str](), 0
        for run in sorted(due - lines.keys()):
            wrong.append(f"lost: {' '.join(map(str, run))}: {self._told(by_run[run])}")
        for run, counts in sorted(lines.items()):
            surplus = counts.total() - 1
            restarts = sum(self.declared[alloc_id].restarts for alloc_id in by_run[run])
            if surplus and surplus <= restarts + len(by_run[run]) - 1:
                explained += surplus
                print(f"again, as declared: {' '.join(map(str, run))}: {self._told(by_run[run])}")
            elif surplus:
                wrong.append(
                    f"twice: {' '.join(map(str, run))}: {counts}: {self._told(by_run[run])}"
                )
            if run not in due and not self._is_slot(run):
                wrong.append(f"unknown: {' '.join(map(str, run))}")
        kinds = Counter(self.accepted.values())
        kinds["slot"] = len(due) - len(self.accepted)
        shown = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
        written = sum(counts.total() for counts in lines.values())
        print(
            f"ledger: {len(due)} due ({shown}), {written} lines, "
            f"{explained} declared repetitions, {self.purged} events after a purge"
        )
        return [
            *wrong,
            *["some events were deleted by garbage collection before they were read"]
            * bool(self.gaps),
        ]

    def _told(self, allocations: list[str]) -> str:
        """Return a description of the states that the daemon has declared for these allocations."""
        return (
            "; ".join(
                f"{alloc_id[:8]} {self.declared[alloc_id].status}, {' | '.join(self.declared[alloc_id].reasons)}"
                for alloc_id in allocations
            )
            or "no allocation was declared"
        )
