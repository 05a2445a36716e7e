"""The workflow of a planned job: its graph, its queues and its calendars."""

from collections.abc import Collection
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

from daemon.evals.cluster_state import load_freeze
from daemon.flow import graph
from daemon.jobspec.steward_meta.job_keys import RUN_CALENDAR, RUN_SLOTS
from storage.queries import concurrency
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND
from storage.records.concurrency import QueueLine
from storage.records.flow import (
    FlowGraph,
    PlannedCalendar,
    PlannedFlow,
    PlannedQueue,
    QueueUse,
    queues_used,
)
from storage.records.job import Job
from storage.records.times import rfc3339

if TYPE_CHECKING:
    from daemon.flow.calendars import CompiledCalendar, Steps

MOST_SHOWN = 20  # queues, and as many calendars


def planned_flow(db: ReadSnapshot, job: Job, opened: Collection[str], *, now: int) -> PlannedFlow:
    """Return the workflow of a valid job.

    `opened` are the steps that a registration of the job would open. The computation of calendars
    may take seconds, so call this function in a thread.
    """
    shown = graph.view(job)
    # Queues of runs come first.
    uses = dict(
        sorted(queues_used(job).items(), key=lambda name_and_use: name_and_use[1] != QueueUse.RUNS)
    )
    lines = {name: _line(db, job.namespace, name) for name in islice(uses, MOST_SHOWN)}
    return PlannedFlow(
        **{name: getattr(shown, name) for name in FlowGraph.__struct_fields__},
        order=[name for names in shown.levels for name in names],
        ready=_ready(db, job, shown, opened, now),
        queues=[
            PlannedQueue(
                name=name,
                use=uses[name],
                slots=line.slots,
                in_use=line.in_use,
                waiting=line.waiting,
                exists=line.exists,
            )
            for name, line in lines.items()
        ],
        calendars=_calendars(db, job, shown, now),
    )


def _line(db: ReadSnapshot, namespace: str, name: str) -> QueueLine:
    """Return a queue; a queue without a limit and without entries has 1 free slot."""
    return concurrency.line(db, (namespace, name)) or QueueLine(
        namespace=namespace, name=name, slots=1, in_use=0, waiting=0, exists=False
    )


def _ready(
    db: ReadSnapshot, job: Job, shown: FlowGraph, opened: Collection[str], now: int
) -> list[str]:
    """Return the opened steps that neither a freeze nor a queue would hold."""
    if not opened or load_freeze(db, job, now) is not None:
        return []

    @cache
    def line(name: str) -> QueueLine:
        return _line(db, job.namespace, name)

    taken = dict[str, int]()  # slots of queues that earlier steps take

    def takes(names: Collection[str], slots: int, elements: int = 1) -> bool:
        """Take slots of all queues for as many of the `elements` as possible.

        Each element needs `slots` slots of each queue. Return whether any element gets them.
        """
        fitting = elements
        for name in names:
            queue = line(name)
            free = queue.slots - queue.in_use - taken.get(name, 0)
            fitting = 0 if queue.waiting else min(fitting, free // min(slots, queue.slots))
        for name in names:
            taken[name] = taken.get(name, 0) + max(fitting, 0) * min(slots, line(name).slots)
        return fitting > 0

    of_runs = [name for name, use in queues_used(job).items() if use == QueueUse.RUNS]
    if not takes(of_runs, RUN_SLOTS.of(job.meta)):
        return []
    return [
        step.name
        for step in shown.steps
        if step.name in opened
        and takes(step.queues, step.slots, min(step.count, step.parallel or step.count))
    ]


def _calendars(db: ReadSnapshot, job: Job, shown: FlowGraph, now: int) -> list[PlannedCalendar]:
    """Return the calendar of the job's slots, then those of its steps, without repetitions."""
    names = dict.fromkeys([RUN_CALENDAR.of(job.meta), *(step.calendar for step in shown.steps)])
    names.pop("", None)
    if not names:
        return []
    # Imported late: few jobs have calendars.
    from daemon.flow.calendars import MAX_STEPS, Steps, UnknownCalendar, compiled
    from storage.queries import calendars

    searches, planned = Steps(), list[PlannedCalendar]()  # one limit for all searches
    for name in islice(names, MOST_SHOWN):
        documents = calendars.documents(db, job.namespace, name).documents
        try:
            calendar = compiled(name, documents)
        except UnknownCalendar:  # a registration refuses the job
            continue
        planned.append(_calendar(calendar, now, Steps(MAX_STEPS // MOST_SHOWN), searches))
    return planned


def _calendar(
    calendar: "CompiledCalendar", now: int, lookups: "Steps", searches: "Steps"
) -> PlannedCalendar:
    from daemon.flow.calendars import Openings, TooManySteps

    try:
        reason = calendar.why_closed(now, lookups)
    except TooManySteps:
        return PlannedCalendar(
            name=calendar.name, is_open=False, reason="the calendar needs too many steps"
        )
    openings = Openings(calendar, searches=searches)
    opening = openings.next_open(now) if reason else None

    def shown(moment: int) -> str:
        return rfc3339(moment // SECOND * SECOND, calendar.zone)

    return PlannedCalendar(
        name=calendar.name,
        is_open=not reason,
        reason=reason,
        next_opening="" if opening is None else shown(opening),
        searched_until=shown(openings.searched_until) if reason and opening is None else "",
    )
