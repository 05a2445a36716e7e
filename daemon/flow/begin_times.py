"""The time window in which a step may begin: not before one time, and not after another."""

from datetime import datetime, timedelta, tzinfo

import msgspec

from daemon.flow.graph import Step
from daemon.jobspec.cron import zone
from daemon.jobspec.steward_meta.step_values import BeginTime
from storage.records.base import SECOND


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The first and the last time at which a step may begin, in nanoseconds; None for no limit."""

    first: int | None = None
    last: int | None = None


def window(step: Step, *, met: int, began: int, is_again: bool = False) -> Window:
    """Return the window of a step whose needs were met at `met`, in a run that began at `began`.

    A limit that is a time of day applies to its first occurrence after the run began. If both
    limits are times of day and the run began between them, the step may begin immediately. A step
    that runs again (`is_again`) is not too late when its needs are met. For such a step, a time of
    day applies to its next occurrence, and a limit in the past has no effect.
    """
    in_zone = zone(step.time_zone)
    first = _time(step.not_before, met, began, in_zone)
    last = _time(step.not_after, met, began, in_zone)
    if is_again and last is not None and last <= met:
        later = msgspec.structs.replace(
            step, not_after=step.not_after if _ends_daily(step) else None
        )
        return window(later, met=met, began=met + 1)
    if first is not None and last is not None and last < first and _is_daily(step):
        first = None
    return Window(first=first, last=last)


def _ends_daily(step: Step) -> bool:
    return step.not_after is not None and step.not_after.minute is not None


def _is_daily(step: Step) -> bool:
    times = (step.not_before, step.not_after)
    return all(time is not None and time.minute is not None for time in times)


def _time(limit: BeginTime | None, met: int, began: int, in_zone: tzinfo) -> int | None:
    if limit is None:
        return None
    if limit.delay is not None:
        return met + limit.delay
    if limit.minute is not None:
        return next_time_of_day(limit.minute, began, in_zone)
    return limit.moment


def next_time_of_day(minute: int, after: int, in_zone: tzinfo) -> int:
    """Return the first time at or after `after` with the local time of a minute of the day.

    If a clock change skips this time, the result is later by the skipped duration. If the time
    occurs twice, the first occurrence counts.
    """
    day = datetime.fromtimestamp(after // SECOND, in_zone).date() - timedelta(days=1)
    while True:
        local = datetime(day.year, day.month, day.day, minute // 60, minute % 60, tzinfo=in_zone)
        if (timestamp := int(local.timestamp()) * SECOND) >= after:
            return timestamp
        day += timedelta(days=1)
