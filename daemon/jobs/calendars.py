"""Calendars: store, delete, import, and show their days."""

import difflib
from collections.abc import Iterator
from datetime import date, timedelta
from functools import partial

import msgspec

from daemon.flow import calendars as rules
from daemon.text.go_format import multi_error, quote
from storage.errors import Conflict, Malformed, NotFound
from storage.queries import calendars, namespaces
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND
from storage.records.calendar import (
    Calendar,
    CalendarDays,
    CalendarImport,
    OpenDay,
)
from storage.records.times import rfc3339
from storage.store import Store
from storage.writer import Transaction

MAX_CALENDARS = 1000  # of a namespace
MAX_DAYS_SHOWN = 400
_SHOWN_USERS = 5
_ANY_INDEX = None


class StoredCalendar(msgspec.Struct, frozen=True, kw_only=True):
    """The version of a calendar after a write, and the index of the write."""

    version: int
    index: int


async def apply(
    store: Store, calendar: Calendar, *, enforced: int | None = _ANY_INDEX, now: int
) -> StoredCalendar:
    """Store a calendar as a new version, unless it is unchanged.

    `enforced` is the modify index that the calendar must have, 0 for a new one. Raises `Malformed` or
    `Conflict`.
    """
    _check(calendar)
    return await store.write(partial(_put, calendar=calendar, enforced=enforced, now=now))


def _check(calendar: Calendar) -> None:
    if found := list(rules.faults(calendar)):
        raise Malformed(f"invalid calendar {quote(calendar.name[:200])}: {multi_error(found)}")


def _put(tx: Transaction, *, calendar: Calendar, enforced: int | None, now: int) -> StoredCalendar:
    namespace, name = calendar.namespace, calendar.name
    if not namespaces.exists(tx, namespace):
        raise Malformed(f"calendar {quote(name)} is in nonexistent namespace {quote(namespace)}")
    before = calendars.find(tx, namespace, name)
    _check_index(before, name, enforced)
    if before is None and calendars.number(tx, namespace) >= MAX_CALENDARS:
        raise Malformed(f"namespace {quote(namespace)} has {MAX_CALENDARS} calendars, the most")
    _check_parts(tx, calendar)
    complete = msgspec.structs.replace(
        calendar,
        version=before.version + 1 if before else 1,
        create_index=before.create_index if before else 0,
        modify_index=0,
    )
    if before is not None and _same(before, complete):
        return StoredCalendar(version=before.version, index=before.modify_index)
    calendars.put(tx, complete, person=tx.person, now=now)
    return StoredCalendar(version=complete.version, index=tx.index)


def _same(before: Calendar, after: Calendar) -> bool:
    return before == msgspec.structs.replace(
        after, version=before.version, modify_index=before.modify_index
    )


def _check_index(before: Calendar | None, name: str, enforced: int | None) -> None:
    if enforced is None:
        return
    if before is None and enforced:
        raise Conflict(f"calendar {quote(name)} does not exist; cas = {enforced} expects it")
    if before is not None and before.modify_index != enforced:
        raise Conflict(
            f"calendar {quote(name)} has modify index {before.modify_index}; cas = {enforced} "
            "expects another one: read the calendar again"
        )


def _check_parts(tx: Transaction, calendar: Calendar) -> None:
    """Raise `Malformed` if a calendar refers to unknown calendars, to itself, or to too many."""
    namespace, known = calendar.namespace, set[str]()
    for name in (*(calendar.only or ()), *(calendar.except_ or ())):
        found = calendars.documents(tx, namespace, name)
        if name not in found.documents:
            raise Malformed(_unknown(name, calendars.names(tx, namespace)))
        if calendar.name in found.documents:
            raise Malformed(
                f"calendar {quote(calendar.name)} cannot refer to {quote(name)}, which refers to "
                f"{quote(calendar.name)}"
            )
        known |= found.documents.keys()
    if len(known) > rules.MAX_PARTS:
        raise Malformed(
            f"calendar {quote(calendar.name)} refers to {len(known)} calendars; "
            f"{rules.MAX_PARTS} is the most"
        )


def _unknown(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0)
    return f"unknown calendar {quote(name)}" + (
        f"; did you mean {quote(close[0])}?" if close else ""
    )


def unknown(db: ReadSnapshot, namespace: str, names: frozenset[str]) -> Iterator[str]:
    """Yield an error for each name without a calendar in a namespace."""
    for name in sorted(names):
        if calendars.find(db, namespace, name) is None:
            yield _unknown(name, calendars.names(db, namespace))


async def remove(
    store: Store, namespace: str, name: str, *, enforced: int | None = _ANY_INDEX
) -> int:
    """Delete a calendar that nothing uses; return the index of the write.

    Raises `NotFound`, or `Conflict` with the jobs and calendars that use it.
    """

    def write(tx: Transaction) -> int:
        before = calendars.find(tx, namespace, name)
        if before is None:
            raise NotFound(f"calendar {quote(name)} not found", index=tx.index)
        _check_index(before, name, enforced)
        jobs, others = calendars.users(tx, namespace, name, _SHOWN_USERS + 1)
        for kind, found in (("jobs", jobs), ("calendars", others)):
            if found:
                shown = ", ".join(map(quote, found[:_SHOWN_USERS]))
                more = " and others" if len(found) > _SHOWN_USERS else ""
                raise Conflict(
                    f"calendar {quote(name)} is used by {kind} {shown}{more}: change or stop them "
                    "before"
                )
        calendars.remove(tx, before)
        return tx.index

    return await store.write(write)


# --- days ---


def days(
    db: ReadSnapshot, namespace: str, name: str, *, first: date | None, number: int, now: int
) -> CalendarDays:
    """Return days of a calendar from `first` on, by default from today. May take long.

    Raises `NotFound`, or `Malformed` for more than `MAX_DAYS_SHOWN` days.
    """
    if not 0 <= number <= MAX_DAYS_SHOWN:
        raise Malformed(f"{number} days were requested; {MAX_DAYS_SHOWN} is the most")
    found = calendars.documents(db, namespace, name)
    if name not in found.documents:
        raise NotFound(f"calendar {quote(name)} not found", index=db.table_index(calendars.TABLE))
    try:
        calendar = rules.compiled(name, found.documents)
    except rules.UnknownCalendar as error:
        raise Malformed(str(error)) from error
    openings = rules.Openings(calendar)
    reason = openings.why_closed(now)
    at = openings.next_open(now) if reason else None
    day = first or rules.local_date(now, calendar.zone)
    return CalendarDays(
        name=name,
        namespace=namespace,
        version=calendar.version,
        is_open=not reason,
        reason=calendar.why_closed(now),
        next_opening="" if at is None else rfc3339(at // SECOND * SECOND, calendar.zone),
        days=[_shown(calendar, day + timedelta(days=one)) for one in range(number)],
    )


def _shown(calendar: rules.CompiledCalendar, day: date) -> OpenDay:
    spans = calendar.day_spans(day)
    return OpenDay(
        date=day.isoformat(),
        is_open=bool(spans),
        reason="" if spans else calendar.why_closed_on(day),
        spans=[
            [rfc3339(begin, calendar.zone), rfc3339(end, calendar.zone)] for begin, end in spans
        ],
    )


# --- import ---


class ImportedDays(msgspec.Struct, frozen=True):
    """The days of a file with their names, and the events that were left out, with reasons."""

    holidays: dict[str, str]
    skipped: list[str]


async def import_holidays(
    store: Store,
    namespace: str,
    name: str,
    found: ImportedDays,
    *,
    now: int,
) -> CalendarImport:
    """Add holidays to a calendar, which is created if it does not exist.

    A name in the file replaces that of the calendar. Raises `Malformed`.
    """

    def write(tx: Transaction) -> CalendarImport:
        before = calendars.find(tx, namespace, name) or Calendar(name=name, namespace=namespace)
        known = before.holidays or {}
        after = msgspec.structs.replace(
            before, holidays=dict(sorted({**known, **found.holidays}.items()))
        )
        _check(after)
        done = _put(tx, calendar=after, enforced=None, now=now)
        added = {day: text for day, text in found.holidays.items() if known.get(day) != text}
        return CalendarImport(
            added=added, skipped=found.skipped, version=done.version, index=done.index
        )

    return await store.write(write)
