"""The children of a job over time: a calendar of their results, and a list of selected children."""

from collections.abc import Iterator
from datetime import date, datetime, timedelta, tzinfo

import msgspec

from daemon.evals.job_states import ended_as, run_of
from daemon.jobspec import cron
from daemon.text.job_state import State
from storage.queries import periodic, tallies
from storage.read_pool import ReadSnapshot
from storage.records.base import MINUTE, SECOND
from storage.records.job import Job, JobStatus
from storage.records.periodic import SlotOutcome
from storage.records.state import Run, RunCalendar, RunDay

ACTIVE = "active"
# The values of a filter of runs, with the states that each includes.
RESULTS: dict[str, frozenset[State]] = {
    "complete": frozenset({State.COMPLETE}),
    "failed": frozenset({State.FAILED, State.FAILING}),
    "stopped": frozenset({State.STOPPED}),
    "blocked": frozenset({State.BLOCKED}),
    ACTIVE: frozenset(),
}
_SCANNED = 5000  # newest ended children that are read; this takes 30 ms in a thread
_ACTIVE = 200  # newest children that are searched for active children
_YEAR = 371  # days: 53 weeks
_LATE = MINUTE
_QUARTER = 15 * MINUTE  # within one day in each time zone, because all offsets are multiples of it


class RunFilter(msgspec.Struct, frozen=True):
    """A filter of runs; an empty `day` or `result` includes all runs."""

    day: str = ""
    result: str = ""


def zone_of(job: Job) -> tzinfo:
    """Return the time zone by which the runs of a job are grouped into days."""
    return cron.zone(job.periodic.time_zone if job.periodic else "")


def calendar(db: ReadSnapshot, job: Job, now: int) -> RunCalendar:
    """Return the results of one year by day, limited to the newest children."""
    zone = zone_of(job)
    today = _day(now, zone)
    first = today - timedelta(days=_YEAR - 1)
    days: dict[date, RunDay] = {}
    results = tallies.counted_results(db, job.namespace, job.id, _SCANNED, _QUARTER)
    for result, number in results:
        if (day := _day(result.launched, zone)) >= first:
            if (line := days.get(day)) is None:
                line = days[day] = _new(day)
            outcome = str(ended_as(result))
            line.results[outcome] = line.results.get(outcome, 0) + number
    for day, name, number in _misses(db, job, zone):
        if day >= first:
            line = days.setdefault(day, _new(day))
            days[day] = msgspec.structs.replace(line, **{name: getattr(line, name) + number})
    is_cut = sum(number for _, number in results) == _SCANNED
    oldest = _day(min((result.launched for result, _ in results), default=now), zone)
    return RunCalendar(
        zone=str(zone),
        today=today.isoformat(),
        days=[days[day] for day in sorted(days)],
        since=(oldest + timedelta(days=1)).isoformat() if is_cut and oldest >= first else "",
    )


def _new(day: date) -> RunDay:
    return RunDay(date=day.isoformat(), results={})


def _day(nanos: int, zone: tzinfo) -> date:
    return datetime.fromtimestamp(nanos // SECOND, zone).date()


def _misses(db: ReadSnapshot, job: Job, zone: tzinfo) -> Iterator[tuple[date, str, int]]:
    """Yield the skipped, caught-up and late slots of a job as tuples: day, kind and number."""
    for slot in periodic.slots(db, job.namespace, job.id):
        day = _day(slot.slot, zone)
        if slot.outcome == SlotOutcome.SKIPPED:
            yield day, "skipped", slot.slots
        elif slot.outcome == SlotOutcome.CAUGHT_UP:
            yield day, "caught_up", slot.slots
        elif slot.decided_at - slot.slot > _LATE:
            yield day, "late", slot.slots


def selected(db: ReadSnapshot, job: Job, now: int, most: int, run_filter: RunFilter) -> list[Run]:
    """Return up to `most` runs that match the filter, newest first."""
    slots = {slot.child_id: slot.slot for slot in periodic.slots(db, job.namespace, job.id)}
    selected_runs = []
    for job_id in _ids(db, job, most, run_filter):
        row = tallies.child(db, job.namespace, job_id)
        if row is not None:
            selected_runs.append(run_of(db, row, slots.get(job_id, 0), now))
        if len(selected_runs) == most:
            break
    return sorted(selected_runs, key=lambda run: run.submitted, reverse=True)


def _ids(db: ReadSnapshot, job: Job, most: int, run_filter: RunFilter) -> Iterator[str]:
    """Yield the IDs of matching children: active children, then ended children, newest first."""
    zone = zone_of(job)
    if run_filter.result in ("", ACTIVE):
        for row in tallies.newest_children(db, job.namespace, job.id, _ACTIVE):
            if row["status"] != JobStatus.DEAD and (
                not run_filter.day
                or run_filter.day == _launch_day(db, row["namespace"], row["id"], zone)
            ):
                yield row["id"]
    if run_filter.result == ACTIVE:
        return
    states = RESULTS.get(run_filter.result)
    scanned = _SCANNED if run_filter.day or run_filter.result else most
    for result in tallies.results(db, job.namespace, job.id, scanned):
        is_wanted = states is None or ended_as(result) in states
        if is_wanted and run_filter.day in ("", _day(result.launched, zone).isoformat()):
            yield result.id


def _launch_day(db: ReadSnapshot, namespace: str, job_id: str, zone: tzinfo) -> str:
    return _day(tallies.launched(db, namespace, job_id), zone).isoformat()
